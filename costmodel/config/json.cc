#include "costmodel/config/json.h"
