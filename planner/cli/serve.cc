#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "planner/cli/commands.h"
#include "planner/serve/guard.h"
#include "planner/serve/server.h"

namespace foldwise::cli {
namespace {

struct ServeOptions {
  std::uint16_t port = 0;
  std::string token;
};

int serve(const ServeOptions& options) {
  std::string token = options.token;
  if (token.empty()) token = serve::random_token();
  serve::Server server({.port = options.port, .token = token});
  print_result(fmt::format("http://127.0.0.1:{}/?token={}\n", server.port(), token));
  print_note("Ctrl-C ends it. Whoever has the address may ask; nobody else may.");
  server.run();
  return kDone;
}

}  // namespace

void add_serve(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command =
      app.add_subcommand("serve", "Explore runs and plans on a page in a browser, of this machine only, with an API");
  command->add_option("--port", options->port, "Port of 127.0.0.1; 0: any that is free")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command
      ->add_option("--token", options->token,
                   "What the address ends in, of 16 letters or more; default: 192 random bits")
      ->check([](const std::string& text) { return serve::token_mistake(text); });
  command->callback([options, &chosen] { chosen = [options] { return serve(*options); }; });
}

}  // namespace foldwise::cli
