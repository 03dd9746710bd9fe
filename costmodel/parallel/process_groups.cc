#include "costmodel/parallel/process_groups.h"
