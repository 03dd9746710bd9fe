#include "hwprofiles/records/record.h"

#include <fstream>
#include <limits>

#include "costmodel/config/json.h"

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

std::vector<Record> load_records(const std::string& path) {
  std::ifstream file(path);
  config::Diagnostics diagnostics;
  if (!file) diagnostics.error({path, 0, ""}, "expected a readable file of records");
  std::vector<Record> records;
  std::string text;
  constexpr double kMost = std::numeric_limits<double>::max();
  for (int line = 1; std::getline(file, text); ++line) {
    if (text.empty()) continue;
    const config::Document document = config::Document::parse(text, path + ":" + std::to_string(line));
    config::ObjectReader reader(document, diagnostics);
    Record record;
    (void)reader.required_integer("schema", 1, 1);
    record.kernel = reader.required_string("kernel");
    if (auto shape = reader.object("shape"))
      for (const std::string& key : shape->keys())
        record.shape[key] = shape->required_integer(key, 0, std::numeric_limits<std::int64_t>::max());
    record.bytes = reader.required_number("bytes", 0, kMost);
    record.flops = reader.required_number("flops", 0, kMost);
    record.device = reader.required_string("device");
    record.libraries = reader.required_string("libraries");
    record.warmups = static_cast<int>(reader.required_integer("warmups", 0, 1 << 20));
    record.correct = reader.boolean_or("correct", false);
    if (const nlohmann::json* samples = reader.raw("samples_ns"); samples != nullptr && samples->is_array()) {
      for (const auto& sample : *samples) {
        if (sample.is_number())
          record.samples_ns.push_back(sample.get<double>());
        else
          reader.error("samples_ns", "expected numbers, found " + std::string(sample.type_name()));
      }
    } else {
      reader.error("samples_ns", "expected a list of nanoseconds");
    }
    reader.finish();
    records.push_back(std::move(record));
  }
  diagnostics.throw_if_any();
  return records;
}

}  // namespace foldwise::hwprofiles
