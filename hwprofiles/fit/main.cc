// foldwise-fit: fits the efficiency curves of the built-in profiles to the kernel measurements in
// hwprofiles/data/kernels and our own in hwprofiles/data/records, derives unmeasured numbers, and prints the errors of
// the curves. --write stores the numbers in the profiles. docs/measuring.md explains the data behind each fit.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <filesystem>
#include <string>

#include "costmodel/config/output_file.h"
#include "hwprofiles/fit/fitting.h"

int main(int argc, char** argv) {
  using foldwise::hwprofiles::Fitting;
  CLI::App app{"Fits the efficiency curves of the built-in profiles to kernel measurements and prints the errors."};
  std::string kernels = FW_DATA_DIR "/kernels", records = FW_DATA_DIR "/records", write;
  app.add_option("--kernels", kernels, "Directory of the kernel measurements")
      ->capture_default_str()
      ->check(CLI::ExistingDirectory);
  app.add_option("--records", records, "Directory of our own records")->capture_default_str();
  app.add_option("--write", write, "Directory of system profiles whose fitted and derived fields are replaced")
      ->check(CLI::ExistingDirectory);
  CLI11_PARSE(app, argc, argv);
  try {
    const std::filesystem::path systems = write.empty() ? FW_DATA_DIR "/systems" : write;
    Fitting fitting(kernels, records, systems);
    foldwise::hwprofiles::print_header();
    fitting.derive();
    if (write.empty()) return 0;
    for (const std::string& name : fitting.names())
      foldwise::config::write_output_file((systems / (name + ".json")).string(), fitting.fitted(name).sheet.text());
    return 0;
  } catch (const foldwise::config::ConfigError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "foldwise-fit: {}\n", error.what());
    return 1;
  }
}
