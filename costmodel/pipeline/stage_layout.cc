#include "costmodel/pipeline/schedule.h"
