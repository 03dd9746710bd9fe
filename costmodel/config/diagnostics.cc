#include "costmodel/config/diagnostics.h"
