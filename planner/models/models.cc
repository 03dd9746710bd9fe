#include "planner/models/models.h"
