#pragma once
#include <cstdint>
#include <vector>

#include "costmodel/pipeline/schedule.h"

namespace foldwise::costmodel {

/// rank_tasks() of schedules that Megatron does not run.
[[nodiscard]] std::vector<Task> study_tasks(const ScheduleShape& shape, std::int64_t rank);

}  // namespace foldwise::costmodel
