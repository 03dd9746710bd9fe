#include "costmodel/pipeline/timeline.h"
