#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

// How many predictions a second does `foldwise serve` answer? Each connection asks for the next one when it has the
// answer to the last. Each asks for another micro-batch in turn, so that no answer is one that was just given.
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using Clock = std::chrono::steady_clock;

struct Asked {
  std::uint16_t port = 0;
  std::string token, run, path = "/api/predict?detail=0";
  int connections = 4;
  double seconds = 10.0;
};

struct Found {
  std::vector<double> milliseconds;
  int refused = 0;
};

Found ask(const Asked& asked, const std::vector<std::string>& bodies, Clock::time_point until) {
  asio::io_context io;
  asio::ip::tcp::socket socket(io);
  socket.connect({asio::ip::address_v4::loopback(), asked.port});
  socket.set_option(asio::ip::tcp::no_delay(true));
  boost::beast::flat_buffer buffer;
  Found found;
  for (std::size_t i = 0; Clock::now() < until; ++i) {
    http::request<http::string_body> request{http::verb::post, asked.path, 11};
    request.set(http::field::host, "127.0.0.1");
    request.set(http::field::content_type, "application/json");
    request.set(http::field::authorization, "Bearer " + asked.token);
    request.body() = bodies[i % bodies.size()];
    request.prepare_payload();
    const auto start = Clock::now();
    http::write(socket, request);
    http::response<http::string_body> response;
    http::read(socket, buffer, response);
    found.milliseconds.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    if (response.result() != http::status::ok) ++found.refused;
  }
  return found;
}

int run(const Asked& asked) {
  std::ifstream file(asked.run);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::string> bodies;
  const std::string key = "\"micro_batch\": 1";
  for (const char* size : {"1", "2", "4"}) {
    std::string body = text;
    if (const std::size_t at = body.find(key); at != std::string::npos) body.replace(at + key.size() - 1, 1, size);
    bodies.push_back(std::move(body));
  }
  const auto start = Clock::now();
  const auto until = start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(asked.seconds));
  std::vector<Found> found(static_cast<std::size_t>(asked.connections));
  std::vector<std::thread> threads;
  for (Found& one : found) threads.emplace_back([&] { one = ask(asked, bodies, until); });
  for (std::thread& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  std::vector<double> all;
  int refused = 0;
  for (const Found& one : found) {
    all.insert(all.end(), one.milliseconds.begin(), one.milliseconds.end());
    refused += one.refused;
  }
  if (all.empty()) return 1;
  std::sort(all.begin(), all.end());
  const auto at = [&](double share) {
    return all[static_cast<std::size_t>(share * static_cast<double>(all.size() - 1))];
  };
  std::printf(
      "%zu answers in %.1f s by %d connections: %.0f a second; %.2f ms the median, %.2f ms 99 of 100; %d refused\n",
      all.size(), seconds, asked.connections, static_cast<double>(all.size()) / seconds, at(0.5), at(0.99), refused);
  return refused == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Asks `foldwise serve` for predictions as fast as it answers", "foldwise-serve-load");
  Asked asked;
  app.add_option("--port", asked.port, "Its port")->required();
  app.add_option("--token", asked.token, "Its token")->required();
  app.add_option("run", asked.run, "Run file")->required()->check(CLI::ExistingFile);
  app.add_option("--path", asked.path, "What to ask for")->capture_default_str();
  app.add_option("--connections", asked.connections, "Side by side")->capture_default_str()->check(CLI::Range(1, 200));
  app.add_option("--seconds", asked.seconds, "How long")->capture_default_str()->check(CLI::Range(0.1, 3600.0));
  CLI11_PARSE(app, argc, argv);
  try {
    return run(asked);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "foldwise-serve-load: %s\n", error.what());
    return 1;
  }
}
