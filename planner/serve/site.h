#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/serve/message.h"

// The page's files, which the program carries.
namespace foldwise::serve {

/// "/": the page; "/serve.js" and the others that it loads. Null: no such file.
[[nodiscard]] const Response* site_file(std::string_view path);

/// The description of the API, OpenAPI 3.1, with docs/schema.json as its schemas of answers.
[[nodiscard]] const std::string& openapi();

/// The headers of every response. A page may load and ask for nothing but this server's files, and no other page may
/// show or read it.
[[nodiscard]] const std::vector<std::pair<std::string, std::string>>& security_headers();

}  // namespace foldwise::serve
