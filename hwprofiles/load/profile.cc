#include "hwprofiles/load/profile.h"
