#pragma once
#include <cstdint>
#include <memory>
#include <string>

namespace foldwise::serve {

struct ServerOptions {
  std::uint16_t port = 0;  ///< 0: any that is free.
  std::string token;       ///< That each request must show (guard.h).
};

/// An HTTP/1.1 server on 127.0.0.1.
class Server {
 public:
  /// Binds the port. Throws ConfigError if that fails.
  explicit Server(ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] std::uint16_t port() const;
  /// Answers requests until SIGINT or SIGTERM; then ends searches and returns.
  void run();

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace foldwise::serve
