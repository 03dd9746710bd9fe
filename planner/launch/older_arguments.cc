#include "planner/launch/older_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace foldwise::planner {

namespace {

constexpr std::string_view kFsdp = "--use-megatron-fsdp";

/// A switch that has another name since.
struct OlderSwitch {
  std::string_view flag, dest, now;  ///< `now`: the flag. Its member has the same name.
  std::string_view until;            ///< Last release with the older name.
};
// core_v0.13.0 training/arguments.py:2356 and :2374, core_v0.14.0 training/arguments.py:2425 and :2443.
constexpr std::array<OlderSwitch, 2> kOlderSwitches{
    {{"--use-custom-fsdp", "use_custom_fsdp", kFsdp, "0.13"},
     {"--keep-fp8-transpose-cache-when-using-custom-fsdp", "keep_fp8_transpose_cache_when_using_custom_fsdp",
      "--keep-fp8-transpose-cache", "0.13"}}};

/// A choice that a flag has no more.
struct OlderChoice {
  std::string_view flag, dest, choice, now;
  std::string_view why;
};
constexpr std::array<OlderChoice, 3> kOlderChoices{
    {// core_v0.12.0 core/transformer/moe/README.md:417, training/arguments.py:2547; core_v0.13.0 :2791.
     {"--moe-token-dispatcher-type", "moe_token_dispatcher_type", "alltoall_seq", "alltoall",
      "until Megatron-Core 0.12 the first implementation of alltoall"},
     // core_v0.15.0 training/arguments.py has the choice, core_v0.16.1 not.
     {"--ckpt-format", "ckpt_format", "zarr", "torch_dist", "until Megatron-Core 0.15 another format of checkpoints"},
     {"--ckpt-convert-format", "ckpt_convert_format", "zarr", "torch_dist",
      "until Megatron-Core 0.15 another format of checkpoints"}}};

// Megatron-FSDP takes no other format (core_v0.16.1 training/arguments.py:690). Its predecessor took every one.
constexpr const char* kFsdpFormat = "fsdp_dtensor";

std::string member_of(std::string_view flag) {
  std::string dest(flag.substr(2));
  std::ranges::replace(dest, '-', '_');
  return dest;
}

std::string note_of(const OlderSwitch& older) {
  return fmt::format("{}: until Megatron-Core {} the name of {}, as which it is read{}", older.flag, older.until,
                     older.now, older.now == kFsdp ? fmt::format(", with its --ckpt-format {}", kFsdpFormat) : "");
}

std::string note_of(const OlderChoice& older) {
  return fmt::format("{} {}: {}, is read as {}", older.flag, older.choice, older.why, older.now);
}

}  // namespace

void modernize(std::vector<Argument>& arguments, const Release* release, std::vector<std::string>& notes) {
  for (std::size_t i = 0; i < arguments.size(); ++i)
    for (const OlderSwitch& older : kOlderSwitches) {
      if (arguments[i].flag != older.flag) continue;
      notes.push_back(note_of(older));
      arguments[i].flag = older.now;
      if (older.now != kFsdp) continue;
      const auto format = std::ranges::find(arguments, "--ckpt-format", &Argument::flag);
      if (format != arguments.end())
        format->values = {kFsdpFormat};
      else
        arguments.push_back({.flag = "--ckpt-format", .values = {kFsdpFormat}, .line = arguments[i].line});
    }
  if (release != nullptr) return;
  for (Argument& argument : arguments)
    for (const OlderChoice& older : kOlderChoices) {
      if (argument.flag != older.flag || argument.values != std::vector<std::string>{std::string(older.choice)})
        continue;
      notes.push_back(note_of(older));
      argument.values = {std::string(older.now)};
    }
}

void modernize(Settings& settings, std::vector<std::string>& notes) {
  for (const OlderSwitch& older : kOlderSwitches) {
    const std::string now = member_of(older.now);
    if (!settings.on(older.dest) || settings.on(now)) continue;  // Release 0.14 to 0.16 have both.
    notes.push_back(note_of(older));
    settings.set(now, true, settings.line(older.dest));
    if (older.now == kFsdp) settings.set("ckpt_format", kFsdpFormat, settings.line("ckpt_format"));
  }
  for (const OlderChoice& older : kOlderChoices) {
    const std::string dest(older.dest);
    if (!settings.is(dest, older.choice)) continue;
    notes.push_back(note_of(older));
    settings.set(dest, std::string(older.now), settings.line(dest));
  }
}

}  // namespace foldwise::planner
