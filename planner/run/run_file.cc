#include "planner/run/run_file.h"
