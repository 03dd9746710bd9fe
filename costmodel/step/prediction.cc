#include "costmodel/step/prediction.h"
