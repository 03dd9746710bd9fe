#include "planner/launch/mapping.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "planner/launch/forms.h"
#include "planner/launch/geometry.h"

namespace foldwise::planner {

using config::Diagnostics;
using costmodel::TrainingOptions;
using nlohmann::json;

namespace {

/// The member of the Namespace that the field's first flag fills; empty if it has no flag.
std::string member_of(const Field& f) {
  if (f.flags.empty()) return "";
  const ArgumentSpec* spec = find_flag(f.flags.front());
  return spec == nullptr ? "" : spec->dest;
}

/// The member of Megatron's configuration that belongs to the flag: the name of "--fp8-dot-product-attention" with
/// underscores.
std::string configuration_member(const Field& f) {
  std::string name = f.flags.front().substr(2);
  std::ranges::replace(name, '-', '_');
  return name;
}

/// Whether a start of Megatron needs the flag to get this value.
bool is_said(const Field& f, const json& value, const TrainingOptions& options) {
  if (value.is_null() || !f.applies_to(options)) return false;
  return value != f.megatron || value.is_number();
}

}  // namespace

Settings settings_of_options(const Run& run, const Release& release, Diagnostics& diagnostics, bool configuration) {
  Settings settings;
  ArgumentWriting writing{.run = run, .release = release, .settings = settings, .refuse = {}};
  writing.refuse = [&](std::string_view key, std::string message) {
    diagnostics.error({run.file, run.line, fmt::format("/{}", key)}, std::move(message));
  };
  for (const Field& f : fields()) {
    if (const Form* form = form_of(f.key)) {
      if (form->write != nullptr) form->write(writing);
      if (form->says == nullptr) continue;
      if (json value = form->says(writing); !value.is_null()) settings.set(form->members.front(), std::move(value));
      continue;
    }
    const std::string member = member_of(f);
    if (!f.is_option() || f.flags.empty()) continue;
    const json value = f.value.get(run.options);
    if (member.empty() && f.applies_to(run.options) && value != f.megatron) {
      if (configuration && f.releases.has(release))
        settings.set(configuration_member(f), value);
      else
        writing.refuse(f.key, fmt::format("no argument of Megatron-LM sets it to {}", value_text(value)));
    }
    if (member.empty() || !is_said(f, value, run.options)) continue;
    if (!f.releases.has(release)) continue;  // A rule refuses the value, or it is Megatron's own.
    settings.set(member, value);
  }
  if (run.options.layer.lora) writing.refuse("task", "Megatron-LM has no argument for LoRA");
  return settings;
}

StatedFields fields_of(const Settings& settings, const std::string& file, Diagnostics& diagnostics) {
  StatedFields stated;
  ArgumentReading reading{.settings = settings, .infer = {}, .refuse = {}};
  reading.infer = [&](std::string_view key, std::string why) {
    const bool known = std::ranges::any_of(stated.inferred, [&](const auto& entry) { return entry.first == key; });
    if (!known) stated.inferred.emplace_back(key, std::move(why));
  };
  reading.refuse = [&](std::string_view dest, std::string message) {
    const bool known = std::ranges::any_of(diagnostics.list(), [&](const auto& d) { return d.message == message; });
    if (!known) diagnostics.error({file, settings.line(dest), std::string(dest)}, std::move(message));
  };
  for (const Field& f : fields()) {
    const Form* form = form_of(f.key);
    json value;
    if (form != nullptr && form->read != nullptr) {
      value = form->read(reading);
    } else {
      std::string member = form == nullptr ? member_of(f) : "";
      if (form != nullptr && !form->members.empty()) member = form->members.front();
      if (const json* given = member.empty() ? nullptr : settings.find(member)) value = *given;
    }
    if (value.is_null()) continue;
    const std::size_t dot = f.key.find('.');
    if (dot == std::string::npos)
      stated.fields[f.key] = std::move(value);
    else
      stated.fields[f.key.substr(0, dot)][f.key.substr(dot + 1)] = std::move(value);
  }
  return stated;
}

bool is_read(std::string_view dest) {
  static const auto members = [] {
    std::set<std::string, std::less<>> all(geometry_members().begin(), geometry_members().end());
    for (const Form& form : forms()) all.insert(form.members.begin(), form.members.end());
    for (const Field& f : fields())
      if (form_of(f.key) == nullptr) all.insert(member_of(f));
    return all;
  }();
  return members.contains(dest);
}

}  // namespace foldwise::planner
