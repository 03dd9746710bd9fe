#include "costmodel/hardware/hardware.h"
