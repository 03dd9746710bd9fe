#include "hwprofiles/records/record.h"

#include <nlohmann/json.hpp>

namespace foldwise::hwprofiles {

std::string to_json_line(const Record& record) {
  const nlohmann::ordered_json json = {{"schema", 1},
                                       {"kernel", record.kernel},
                                       {"shape", record.shape},
                                       {"bytes", record.bytes},
                                       {"flops", record.flops},
                                       {"device", record.device},
                                       {"libraries", record.libraries},
                                       {"warmups", record.warmups},
                                       {"samples_ns", record.samples_ns},
                                       {"correct", record.correct}};
  return json.dump();
}

}  // namespace foldwise::hwprofiles
