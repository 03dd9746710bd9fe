#include "costmodel/model/model.h"
