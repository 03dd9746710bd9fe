#include "planner/serve/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "planner/serve/api.h"
#include "planner/serve/guard.h"
#include "planner/serve/plan_stream.h"
#include "planner/serve/requests.h"
#include "planner/serve/site.h"

// One thread reads and writes all connections (Boost.Beast); a pool of one thread per core answers; searches have
// threads of their own, so that a prediction never waits for one. Handlers of a connection run on the first thread
// only, so that they need no locks.
namespace foldwise::serve {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::beast::error_code;
using boost::beast::string_view;

constexpr std::size_t kMostConnections = 256;
constexpr std::size_t kMostSearches = 4;                             ///< At once; more get a 429.
constexpr std::uint64_t kMostBody = 1U << 20;                        ///< Bytes.
constexpr std::uint32_t kMostHead = 1U << 14;                        ///< Bytes of a request's line and headers.
constexpr std::size_t kMostLines = 1000;                             ///< That wait for a slow reader of a search.
constexpr std::size_t kDrained = 1U << 14, kMostDrained = 1U << 24;  ///< Bytes that are read and dropped at the end.
constexpr std::chrono::seconds kLast{5};                             ///< For those.
constexpr std::chrono::seconds kIdle{60};  ///< Between requests, for one of them, and for a response.

std::string_view of(string_view text) { return {text.data(), text.size()}; }

/// What a form of another page can send has another type.
bool is_json(std::string_view type) { return type.substr(0, type.find(';')) == "application/json"; }

template <typename Message>
void set_common(Message& message, std::string_view type) {
  message.set(http::field::content_type, string_view(type.data(), type.size()));
  for (const auto& [name, value] : security_headers()) message.set(name, value);
}

/// What connections share.
struct Shared {
  std::atomic<std::size_t> connections = 0;  ///< Now. Any thread may end the last use of one, after what stands below.
  std::size_t searching = 0;                 ///< Now.
  std::atomic<bool> stopping = false;
  std::optional<Guard> guard;
  asio::io_context io{1};
  asio::thread_pool answers{std::max(2U, std::thread::hardware_concurrency())};
  asio::thread_pool searches{kMostSearches};
};

/// A client, from its first byte to its last.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, Shared& shared) : stream_(std::move(socket)), shared_(shared) {
    ++shared_.connections;
    error_code ignored;
    stream_.socket().set_option(tcp::no_delay(true), ignored);
  }
  ~Connection() { --shared_.connections; }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void read() {
    parser_.emplace();
    parser_->header_limit(kMostHead);
    parser_->body_limit(kMostBody);
    stream_.expires_after(kIdle);
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](error_code error, std::size_t /*bytes*/) { self->on_read(error); });
  }
  /// Refuses a client without reading what it asks.
  void refuse(const Response& response) { write(response, false); }

 private:
  void on_read(error_code error) {
    if (error == http::error::body_limit)
      write(failure(413, "", fmt::format("expected a body of at most {} bytes", kMostBody)), false);
    else if (error == http::error::header_limit)
      write(failure(431, "", fmt::format("expected a head of at most {} bytes", kMostHead)), false);
    else if (error == http::error::end_of_stream)
      close();
    else if (error.category() == http::make_error_code(http::error::bad_target).category())
      write(failure(400, "", fmt::format("not HTTP: {}", error.message())), false);
    else if (!error)
      handle();
  }

  void handle() {
    http::request<http::string_body> message = parser_->release();
    const bool keep_alive = message.keep_alive();
    const std::string_view target = of(message.target());
    const std::size_t question = std::min(target.find('?'), target.size());
    Request request{.method = std::string(of(message.method_string())),
                    .path = std::string(target.substr(0, question)),
                    .query = std::string(target.substr(std::min(question + 1, target.size()))),
                    .body = std::move(message.body()),
                    .is_json = is_json(of(message[http::field::content_type]))};
    const Head head{.method = request.method,
                    .path = request.path,
                    .query = request.query,
                    .host = of(message[http::field::host]),
                    .origin = of(message[http::field::origin]),
                    .authorization = of(message[http::field::authorization]),
                    .cookie = of(message[http::field::cookie]),
                    .fetch_site = of(message["Sec-Fetch-Site"])};
    if (message.version() != 11) return write(failure(400, "", "expected HTTP/1.1"), false);
    if (const std::optional<Response> refusal = shared_.guard->refusal(head)) return write(*refusal, keep_alive);
    if (request.path == "/api/plan" && request.method == "POST" && request.is_json)
      return plan(std::move(request), keep_alive);
    asio::post(shared_.answers, [self = shared_from_this(), request = std::move(request), keep_alive] {
      Response response = respond(request);
      if (request.path == "/" && response.status == 200)
        response.headers.emplace_back("Set-Cookie", self->shared_.guard->cookie());
      asio::post(self->shared_.io,
                 [self, response = std::move(response), keep_alive] { self->write(response, keep_alive); });
    });
  }

  void write(const Response& response, bool keep_alive) {
    response_.emplace(static_cast<http::status>(response.status), 11);
    set_common(*response_, response.type);
    for (const auto& [name, value] : response.headers) response_->insert(name, value);
    response_->keep_alive(keep_alive);
    response_->body() = response.body;
    response_->prepare_payload();
    stream_.expires_after(kIdle);
    http::async_write(stream_, *response_,
                      [self = shared_from_this(), keep_alive](error_code error, std::size_t /*bytes*/) {
                        if (error) return;
                        keep_alive && !self->shared_.stopping ? self->read() : self->close();
                      });
  }

  /// Ends the connection once the client has had the chance to read: bytes that it still sends would reset it.
  void close() {
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    if (watching_) return stream_.cancel();
    stream_.expires_after(kLast);
    drain(kMostDrained);
  }
  void drain(std::size_t left) {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(kDrained),
                            [self = shared_from_this(), left](error_code error, std::size_t bytes) {
                              if (!error && bytes < left) self->drain(left - bytes);
                            });
  }

  /// A search: its lines are written as they come, and it ends when the client is gone.
  void plan(Request request, bool keep_alive) {
    if (shared_.searching >= kMostSearches) {
      Response busy = failure(429, "", fmt::format("{} searches run already: ask again later", kMostSearches));
      busy.headers.emplace_back("Retry-After", "5");
      return write(busy, keep_alive);
    }
    ++shared_.searching;
    stream_.expires_never();
    watch();
    asio::post(shared_.searches, [self = shared_from_this(), request = std::move(request)] {
      const auto send = [&](const std::string& line) {
        asio::post(self->shared_.io, [self, line] { self->add_line(line); });
        return !self->gone_ && !self->shared_.stopping;
      };
      std::optional<Response> instead = stream_plan(request, send);
      asio::post(self->shared_.io, [self, instead = std::move(instead)] {
        --self->shared_.searching;
        self->end_lines(instead);
      });
    });
  }

  /// Notices that the client is gone.
  void watch() {
    watching_ = true;
    stream_.async_read_some(buffer_.prepare(1), [self = shared_from_this()](error_code error, std::size_t bytes) {
      self->buffer_.commit(bytes);  // Of its next request, which closing refuses.
      self->watching_ = false;
      if (error) self->gone_ = true;
    });
  }

  void add_line(const std::string& line) {
    if (lines_.size() >= kMostLines) gone_ = true;
    if (gone_) return;
    lines_.push_back(line);
    if (!writing_) write_line();
  }

  void end_lines(const std::optional<Response>& instead) {
    if (instead) return write(*instead, false);
    ended_ = true;
    if (!writing_) write_line();
  }

  void write_line() {
    writing_ = true;
    chunk_.clear();
    if (!head_sent_) {
      head_sent_ = true;
      http::response<http::empty_body> head(http::status::ok, 11);
      set_common(head, "application/x-ndjson");
      head.set(http::field::transfer_encoding, "chunked");
      head.set(http::field::connection, "close");
      chunk_ = fmt::format("{}", text_of_head(head));
    }
    const bool last = lines_.empty();
    if (last) {
      chunk_ += "0\r\n\r\n";
    } else {
      chunk_ += fmt::format("{:x}\r\n{}\r\n", lines_.front().size(), lines_.front());
      lines_.pop_front();
    }
    asio::async_write(stream_, asio::buffer(chunk_),
                      [self = shared_from_this(), last](error_code error, std::size_t /*bytes*/) {
                        self->writing_ = false;
                        if (error) {
                          self->gone_ = true;
                        } else if (!self->lines_.empty() || (self->ended_ && !last)) {
                          self->write_line();
                        } else if (last) {
                          self->close();
                        }
                      });
  }

  static std::string text_of_head(const http::response<http::empty_body>& head) {
    std::string text = "HTTP/1.1 200 OK\r\n";
    for (const auto& field : head) text += fmt::format("{}: {}\r\n", of(field.name_string()), of(field.value()));
    return text + "\r\n";
  }

  boost::beast::tcp_stream stream_;
  Shared& shared_;
  boost::beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  std::optional<http::response<http::string_body>> response_;
  // Of a search.
  std::atomic<bool> gone_ = false;
  std::deque<std::string> lines_;
  std::string chunk_;
  bool watching_ = false, head_sent_ = false, writing_ = false, ended_ = false;
};

}  // namespace

class Server::Service {
 public:
  explicit Service(ServerOptions options) : acceptor_(shared_.io), signals_(shared_.io, SIGINT, SIGTERM) {
    const tcp::endpoint here(asio::ip::address_v4::loopback(), options.port);
    error_code error;
    acceptor_.open(here.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(here, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error)
      throw config::ConfigError({{{"command line", 0, "--port"},
                                  fmt::format("{} cannot be listened on: {}", options.port, error.message())}});
    shared_.guard.emplace(std::move(options.token), port());
  }

  [[nodiscard]] std::uint16_t port() const { return acceptor_.local_endpoint().port(); }

  void run() {
    signals_.async_wait([this](error_code error, int /*signal*/) {
      if (error) return;
      shared_.stopping = true;
      shared_.io.stop();
    });
    accept();
    shared_.io.run();
    shared_.searches.join();
    shared_.answers.join();
  }

 private:
  void accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (!error) {
        const bool full = shared_.connections >= kMostConnections;
        const auto connection = std::make_shared<Connection>(std::move(socket), shared_);
        full ? connection->refuse(failure(429, "", "too many connections")) : connection->read();
      }
      accept();
    });
  }

  Shared shared_;
  tcp::acceptor acceptor_;
  asio::signal_set signals_;
};

Server::Server(ServerOptions options) : service_(std::make_unique<Service>(std::move(options))) {}
Server::~Server() = default;
std::uint16_t Server::port() const { return service_->port(); }
void Server::run() { service_->run(); }

}  // namespace foldwise::serve
