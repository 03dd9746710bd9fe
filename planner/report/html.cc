#include "planner/report/html.h"

#include <fmt/format.h>

#include <map>
#include <string_view>
#include <utility>

#include "planner/report/markup.h"

namespace foldwise::planner {

namespace page {
/// Generated from the files of planner_page.
const std::string* embedded_file(std::string_view name);
}  // namespace page

std::string_view page_file(std::string_view name) {
  const std::string* text = page::embedded_file(name);
  return text != nullptr ? std::string_view(*text) : "";
}

namespace {

using nlohmann::json;

/// Content-Security-Policy source 'sha256-...' that allows inline elements with the contents of this file only.
std::string hash_source(std::string_view name) {
  const json hashes = json::parse(page_file("page_hashes"));
  const std::string hex = hashes.at(std::string(name));
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string base64;
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : hex) {
    bits = bits << 4U | static_cast<std::uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
    held += 4;
    if (held < 6) continue;
    held -= 6;
    base64 += kDigits[bits >> static_cast<unsigned>(held) & 63U];
  }
  if (held > 0) base64 += kDigits[bits << static_cast<unsigned>(6 - held) & 63U];
  while (base64.size() % 4 != 0) base64 += '=';
  return fmt::format("'sha256-{}'", base64);
}

/// JSON with every "<" escaped: "</script" would end the script element around it.
std::string json_in_script(const json& value) {
  std::string out;
  for (const char c : value.dump(-1, ' ', false, json::error_handler_t::replace))
    c == '<' ? out += "\\u003c" : out += c;
  return out;
}

/// `text` with each {{name}} replaced. Replacements are not scanned again.
std::string filled(std::string_view text, const std::map<std::string_view, std::string>& parts) {
  std::string out;
  for (std::size_t open = text.find("{{"); open != std::string_view::npos; open = text.find("{{")) {
    const std::size_t close = text.find("}}", open);
    out += text.substr(0, open);
    out += parts.at(text.substr(open + 2, close - open - 2));
    text.remove_prefix(close + 2);
  }
  return out += text;
}

}  // namespace

bool has_chart_library() { return !page_file("plotly.min.js").empty(); }

std::string html(const Page& page) {
  json pictures = json::array();
  for (const Picture& picture : page.pictures) pictures.push_back({{"title", picture.title}, {"svg", picture.svg}});
  const json data = {{"kind", page.kind},     {"command", page.command}, {"program", page.program},
                     {"answer", page.answer}, {"systems", page.systems}, {"pictures", pictures}};
  std::string code, scripts;
  for (const char* const name :
       {"policy.js", "plotly.min.js", "elements.js", "charts.js", "parts.js", "plan.js", "runs.js", "page.js"}) {
    if (page_file(name).empty()) continue;
    code += fmt::format("<script>{}</script>\n", page_file(name));
    scripts += (scripts.empty() ? "" : " ") + hash_source(name);
  }
  // Plotly creates empty style elements and fills them.
  return filled(page_file("page.html"), {{"title", escaped("Foldwise: " + page.kind)},
                                         {"css", std::string(page_file("page.css"))},
                                         {"styles", hash_source("page.css") + ' ' + hash_source("empty")},
                                         {"data", json_in_script(data)},
                                         {"code", code},
                                         {"scripts", scripts}});
}

}  // namespace foldwise::planner
