#include "hwprofiles/records/record.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace foldwise::hwprofiles {
namespace {

using Json = nlohmann::ordered_json;

std::string line_of(const Json& object) {
  return object.dump(-1, ' ', false,
                     Json::error_handler_t::replace);  // a driver may use another encoding for its device's name
}

/// All records of a file are of one device. Other libraries or NICs make settings be measured again.
bool same_machine(const nlohmann::json& line, const Session& session) {
  const nlohmann::json nics = session.nics;
  return line.value("driver", "") == session.driver &&
         line.value("libraries", nlohmann::json::object()) == nlohmann::json(session.libraries) &&
         line.value("devices", 0) == session.devices &&
         line.value("topology", nlohmann::json::object()).value("nics", nics) == nics;
}

}  // namespace

std::string to_json_line(const Session& session) {
  Json line = {{"schema", kRecordSchema},    {"session", session.id},          {"program", session.program},
               {"started", session.started}, {"device", session.device},       {"devices", session.devices},
               {"driver", session.driver},   {"libraries", session.libraries}, {"build", session.build},
               {"clocks", session.clocks}};
  if (!session.hosts.empty())
    line["topology"] = {{"hosts", session.hosts}, {"nvlink_domain", session.nvlink_domain}, {"nics", session.nics}};
  return line_of(line);
}

std::string to_json_line(const Measurement& measurement) {
  return line_of({{"schema", kRecordSchema},
                  {"session", measurement.session},
                  {"kernel", measurement.kernel},
                  {"of", measurement.of},
                  {"shape", measurement.shape},
                  {"flops", measurement.flops},
                  {"bytes", measurement.bytes},
                  {"warmups", measurement.warmups},
                  {"samples_us", measurement.samples_us},
                  {"correct", measurement.correct},
                  {"max_relative_error", measurement.max_relative_error}});
}

std::string setting_of(const Measurement& measurement) {
  return nlohmann::json{measurement.kernel, measurement.of, measurement.shape}.dump();
}

RecordFile::RecordFile(std::string path, Session session) : path_(std::move(path)), session_(std::move(session)) {
  std::set<std::string> comparable;  // sessions on the same machine
  std::uintmax_t complete = 0;       // bytes up to the last complete line
  std::ifstream in(path_, std::ios::binary);
  const std::string no_records = path_ + ": not a file of records, nothing is appended";
  try {
    for (std::string line; std::getline(in, line) && !in.eof();) {
      complete += line.size() + 1;
      const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
      if (!json.is_object()) throw std::runtime_error(no_records);
      if (json.contains("device")) {
        if (json.value("schema", 0) != kRecordSchema || json.value("device", "") != session_.device)
          throw std::runtime_error(path_ + ": holds records of \"" + json.value("device", "") + "\", this is \"" +
                                   session_.device + "\"; choose another file");
        if (same_machine(json, session_)) comparable.insert(json.value("session", ""));
      } else if (comparable.contains(json.value("session", "")) && json.value("correct", false)) {
        measured_.insert(nlohmann::json{json.at("kernel"), json.at("of"), json.at("shape")}.dump());
      }
    }
  } catch (const nlohmann::json::exception&) {  // A key is missing or has a value of another type.
    throw std::runtime_error(no_records);
  }
  in.close();
  if (std::filesystem::exists(path_) && std::filesystem::file_size(path_) > complete)
    std::filesystem::resize_file(path_, complete);
  out_.open(path_, std::ios::binary | std::ios::app);
  if (!out_) throw std::runtime_error(path_ + ": cannot be written");
}

void RecordFile::append(Measurement measurement) {
  if (!session_written_) write(to_json_line(session_));
  session_written_ = true;
  measurement.session = session_.id;
  write(to_json_line(measurement));
  if (measurement.correct) measured_.insert(setting_of(measurement));
}

void RecordFile::write(const std::string& line) {
  out_ << line << '\n' << std::flush;
  if (!out_) throw std::runtime_error(path_ + ": cannot be written");
}

}  // namespace foldwise::hwprofiles
