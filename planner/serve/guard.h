#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "planner/serve/message.h"

// Who may ask. The server listens on loopback only, where every user and every page of every browser of the machine can
// reach it. So each request must show the token; its Host must be loopback's name, because another name that resolves
// to 127.0.0.1 is an attacker's (DNS rebinding); and its Origin, if a browser sends one, must be the page's own.
namespace foldwise::serve {

/// What of a request's head the guard reads. Empty: the header is missing.
struct Head {
  std::string_view method, path, query;
  std::string_view host, origin, authorization, cookie, fetch_site;
};

class Guard {
 public:
  /// `port`: the server's, part of the cookie's name.
  Guard(std::string token, unsigned short port);

  /// Why the request is refused: 401 or 403. Nullopt: it may go on.
  [[nodiscard]] std::optional<Response> refusal(const Head& head) const;
  /// The Set-Cookie header for a browser that opened the page with the token in its URL.
  [[nodiscard]] std::string cookie() const;

 private:
  std::string token_, name_;
};

/// 192 random bits of the operating system, in hexadecimal. Throws std::system_error.
[[nodiscard]] std::string random_token();
/// Why a text cannot be a token; empty: it can.
[[nodiscard]] std::string token_mistake(std::string_view token);

/// Takes as long for every text of the token's length.
[[nodiscard]] bool same_token(std::string_view token, std::string_view found);

}  // namespace foldwise::serve
