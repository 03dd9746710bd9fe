#include "planner/serve/guard.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <system_error>
#include <utility>

#include "planner/serve/requests.h"

namespace foldwise::serve {
namespace {

constexpr std::size_t kTokenBytes = 24;
constexpr std::size_t kShortestToken = 16;

/// "127.0.0.1" of "127.0.0.1:8888". The port may be another one than ours: `ssh -L` forwards from any.
std::string_view name_in(std::string_view host) {
  const std::size_t colon = host.rfind(':');
  if (colon == std::string_view::npos) return host;
  const std::string_view port = host.substr(colon + 1);
  const bool digits = !port.empty() && port.find_first_not_of("0123456789") == std::string_view::npos;
  return digits ? host.substr(0, colon) : std::string_view();
}

std::string_view cookie_value(std::string_view cookies, std::string_view name) {
  while (!cookies.empty()) {
    std::string_view part = cookies.substr(0, cookies.find(';'));
    cookies.remove_prefix(std::min(cookies.size(), part.size() + 1));
    part.remove_prefix(std::min(part.find_first_not_of(' '), part.size()));
    if (part.size() > name.size() && part.starts_with(name) && part[name.size()] == '=')
      return part.substr(name.size() + 1);
  }
  return {};
}

Response no_token(const Head& head) {
  if (head.path != "/") return failure(401, "", "expected the token that foldwise serve printed");
  return {.status = 401,
          .type = "text/plain; charset=utf-8",
          .body = "Open the address that `foldwise serve` printed: it ends in ?token=...\n"};
}

}  // namespace

Guard::Guard(std::string token, unsigned short port)
    : token_(std::move(token)), name_(fmt::format("foldwise-{}", port)) {}

std::optional<Response> Guard::refusal(const Head& head) const {
  if (const std::string_view name = name_in(head.host); name != "127.0.0.1" && name != "localhost")
    return failure(403, "", "expected the Host 127.0.0.1 or localhost");
  const bool is_page = head.method == "GET" && head.path == "/";
  if (!head.origin.empty() && head.origin != fmt::format("http://{}", head.host))
    return failure(403, "", "expected no other Origin than this server's page");
  // A link elsewhere may lead to the page, and nothing else may be asked from there.
  if (!is_page && !head.fetch_site.empty() && head.fetch_site != "same-origin" && head.fetch_site != "none")
    return failure(403, "", "expected a request of this server's page");
  constexpr std::string_view kBearer = "Bearer ";
  const bool known =
      (head.authorization.starts_with(kBearer) && same_token(token_, head.authorization.substr(kBearer.size()))) ||
      same_token(token_, cookie_value(head.cookie, name_)) ||
      (is_page && same_token(token_, query_value(head.query, "token")));
  if (!known) return no_token(head);
  return std::nullopt;
}

std::string Guard::cookie() const { return fmt::format("{}={}; HttpOnly; SameSite=Strict; Path=/", name_, token_); }

std::string random_token() {
  std::array<unsigned char, kTokenBytes> bytes{};
  for (std::size_t got = 0; got < bytes.size();) {
    const ssize_t count = ::getrandom(bytes.data() + got, bytes.size() - got, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::system_error(errno, std::generic_category(), "getrandom");
    got += static_cast<std::size_t>(count);
  }
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::string token_mistake(std::string_view token) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
  if (token.size() < kShortestToken || token.size() > 256 ||
      token.find_first_not_of(kLetters) != std::string_view::npos)
    return fmt::format("expected {} to 256 letters, digits, '-' and '_'", kShortestToken);
  return "";
}

bool same_token(std::string_view token, std::string_view found) {
  if (found.size() != token.size()) return false;
  unsigned differing = 0;
  for (std::size_t i = 0; i < token.size(); ++i)
    differing |= static_cast<unsigned>(static_cast<unsigned char>(token[i]) ^ static_cast<unsigned char>(found[i]));
  return differing == 0;
}

}  // namespace foldwise::serve
