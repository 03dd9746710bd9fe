#include "planner/report/communication_report.h"

#include <fmt/format.h>

#include "planner/report/screen.h"

namespace foldwise::planner {
namespace {

using costmodel::CommunicationEntry;
using costmodel::LinkLoad;

std::string gb_text(Bytes bytes) { return fmt::format("{:.2f}", bytes.to<double>() / 1e9); }

}  // namespace

nlohmann::json communication_json(const costmodel::CommunicationReport& report) {
  nlohmann::json entries = nlohmann::json::array(), links = nlohmann::json::array();
  for (const CommunicationEntry& e : report.entries)
    entries.push_back({{"kind", e.kind},
                       {"group", e.group},
                       {"tier", e.tier},
                       {"bytes", e.bytes.to<double>()},
                       {"exposed_s", e.exposed.to<double>()},
                       {"hidden_s", e.hidden.to<double>()}});
  for (const LinkLoad& link : report.links)
    links.push_back({{"link", link.name},
                     {"tier", link.tier},
                     {"bytes", link.bytes.to<double>()},
                     {"bandwidth_bytes_per_s", link.bandwidth.to<double>()},
                     {"busy_s", link.busy().to<double>()}});
  return {{"entries", std::move(entries)},
          {"links", std::move(links)},
          {"busiest_link", report.links.empty() ? nlohmann::json(nullptr) : nlohmann::json(report.links.front().name)}};
}

std::string communication_text(const costmodel::CommunicationReport& report) {
  Table entries({"<kind", "<group", "<slowest tier", "GB a GPU", "exposed, s", "hidden, s"});
  for (const CommunicationEntry& e : report.entries)
    entries.add({e.kind, e.group, e.tier, gb_text(e.bytes), seconds_text(e.exposed.to<double>()),
                 seconds_text(e.hidden.to<double>())});
  Table links({"<busiest link", "<of", "GB", "GB/s", "busy, s"});
  for (const LinkLoad& link : report.links)
    links.add({link.name, link.tier, gb_text(link.bytes), fmt::format("{:.0f}", link.bandwidth.to<double>() / 1e9),
               seconds_text(link.busy().to<double>())});
  return "Communication of the busiest stage in a step\n" + entries.text() + '\n' + links.text();
}

}  // namespace foldwise::planner
