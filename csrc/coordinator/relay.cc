#include "coordinator/relay.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"

namespace gradred {
namespace {

constexpr std::uint64_t kAskEveryNs = 500'000'000;  // the sites that a name waits for
// The launcher may tell of the rank as well, and knows how it ended.
constexpr std::uint64_t kLostNs = 400'000'000;
// Since the last packet: what comes later goes at once.
constexpr std::uint64_t kTogetherNs = 20'000;
constexpr int kRoomMs = 1;  // until a full log is looked at again
constexpr std::chrono::seconds kSettle{1};

}  // namespace

Relay::Relay(Board& board, std::unique_ptr<Sites> sites, std::vector<Socket> connections,
             std::vector<std::string> leaders, std::function<void(const FailureReport&)> on_failure)
    : board_(board),
      on_failure_(std::move(on_failure)),
      sites_(std::move(sites)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  if (!wake_.is_open() || !timer_.is_open()) {
    throw TransportError("named operations: there is no file descriptor left");
  }
  for (std::size_t i = 0; i < connections.size(); ++i) {
    connections_.push_back({.socket = std::move(connections[i]), .leader = std::move(leaders[i])});
  }
  board_thread_ = std::thread([this] { watch_board(); });
  socket_thread_ = std::thread([this] { watch_sockets(); });
}

Relay::~Relay() {
  stopping_ = true;
  board_.ring_outgoing();
  wake_sockets();
  board_thread_.join();
  socket_thread_.join();
}

void Relay::carry(bool soon) noexcept {
  const std::lock_guard lock(mutex_);
  carry_locked();
  soon ? flush_soon() : flush_all();
}

bool Relay::look() noexcept {
  const std::lock_guard lock(mutex_);
  carry_locked();
  flush_all();
  listen_to(looks_);
  if (poll(looks_.data(), looks_.size(), 0) <= 0) return false;
  bool any = true;
  try {
    any = hear_all(looks_);
  } catch (const std::exception& error) {
    fail(error.what());
  }
  flush_all();
  return any;
}

void Relay::settle() noexcept {
  carry();
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, kSettle, [this] { return over_; });
}

// ---- the threads --------------------------------------------------------------------------------

void Relay::watch_board() {
  while (!stopping_) {
    const Awaited next = board_.outgoing();
    carry();
    Sleep::until(next, Sleep::kForever);
  }
}

void Relay::watch_sockets() {
  std::vector<pollfd> looks;
  while (!stopping_) {
    int limit_ms = 0;
    {
      const std::lock_guard lock(mutex_);
      listen_to(looks);
      looks.push_back({.fd = wake_.fd(), .events = POLLIN, .revents = 0});
      looks.push_back({.fd = timer_.fd(), .events = POLLIN, .revents = 0});
      limit_ms = poll_ms();
      sleeps_long_ = limit_ms < 0;
    }
    poll(looks.data(), looks.size(), limit_ms);
    const std::lock_guard lock(mutex_);
    sleeps_long_ = false;
    for (const pollfd& one : std::span(looks).last(2)) {
      std::uint64_t count = 0;
      if (one.revents == 0) continue;
      [[maybe_unused]] const ssize_t got = read(one.fd, &count, sizeof count);
    }
    if (looks.back().revents != 0) is_timed_ = false;
    try {
      hear_all(looks);
      ask_for_missing();
      give_up_lost();
    } catch (const std::exception& error) {
      fail(error.what());
    }
    flush_all();
  }
}

void Relay::listen_to(std::vector<pollfd>& looks) const {
  looks.clear();
  for (const Connection& one : connections_) {
    const short events = one.is_full ? POLLIN | POLLOUT : POLLIN;
    // One that is lost, or not used any more: a negative number is not looked at.
    looks.push_back({.fd = one.socket.fd(), .events = events, .revents = 0});
  }
}

// By connection, what has happened there.
bool Relay::hear_all(const std::vector<pollfd>& looks) {
  bool any = false;
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    const short happened = looks[i].revents;
    if ((happened & POLLOUT) != 0) flush(connections_[i]);
    if ((happened & (POLLIN | POLLERR | POLLHUP)) != 0) any |= receive(i);
  }
  deliver();
  if (sites_ != nullptr) decide();
  return any;
}

// How long the sockets may be slept at.
int Relay::poll_ms() {
  if (!incoming_.empty()) return kRoomMs;
  const auto is_lost = [](const Connection& one) { return one.lost_ns != 0; };
  if (!over_ && std::ranges::any_of(connections_, is_lost)) return 50;
  const bool asks = sites_ != nullptr && sites_->any_waiting();
  return asks ? static_cast<int>(kAskEveryNs / 1'000'000) : -1;
}

void Relay::wake_sockets() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t sent = write(wake_.fd(), &one, sizeof one);
}

// ---- what goes out ------------------------------------------------------------------------------

void Relay::carry_locked() {
  try {
    for (const SiteMessage& message : board_.take_outgoing()) to_coordinator(message);
    if (sites_ != nullptr) decide();
  } catch (const std::exception& error) {
    fail(error.what());
  }
  if (sleeps_long_ && poll_ms() >= 0) wake_sockets();
}

void Relay::to_coordinator(const SiteMessage& message) {
  sites_ != nullptr ? sites_->hear(0, message) : send(connections_.front(), message);
}

// Entries that no rank of this site has taken yet stay open: what comes meanwhile joins them.
void Relay::decide() {
  if (!sites_->any_agreed() || (!sites_->is_over() && !board_.is_taken())) return;
  for (SiteMessage& message : sites_->take()) {
    for (Connection& one : connections_) send(one, message);
    incoming_.push_back(std::move(message));
  }
  deliver();
}

void Relay::send(Connection& connection, const SiteMessage& message) {
  if (connection.socket.is_open()) connection.encoder.add(message, connection.unsent);
}

// What is to be said by now, in one packet for each site.
void Relay::flush_all() {
  bool any = false;
  for (Connection& one : connections_) {
    if (one.unsent.empty() || one.is_full) continue;
    flush(one);
    any = true;
  }
  if (any) flushed_ns_ = now_ns();
}

// The same now, if the last packet was a while ago, or in a moment.
void Relay::flush_soon() {
  const auto has_unsent = [](const Connection& one) { return !one.unsent.empty(); };
  if (std::ranges::none_of(connections_, has_unsent)) return;
  if (now_ns() - flushed_ns_ >= kTogetherNs) return flush_all();
  if (std::exchange(is_timed_, true)) return;
  const itimerspec once{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = kTogetherNs}};
  timerfd_settime(timer_.fd(), 0, &once, nullptr);
}

void Relay::flush(Connection& connection) {
  std::vector<std::byte>& unsent = connection.unsent;
  std::size_t sent = 0;
  while (sent < unsent.size()) {
    const ssize_t count = ::send(connection.socket.fd(), unsent.data() + sent, unsent.size() - sent,
                                 MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count <= 0) break;  // it is full, or broken, which who reads finds out
    sent += static_cast<std::size_t>(count);
  }
  unsent.erase(unsent.begin(), unsent.begin() + static_cast<std::ptrdiff_t>(sent));
  connection.is_full = !unsent.empty();
  if (connection.is_full) wake_sockets();  // to look for room
}

// Of names that wait for other sites, which ranks there have not submitted them.
void Relay::ask_for_missing() {
  if (sites_ == nullptr || over_) return;
  const std::uint64_t now = now_ns();
  if (now - asked_ns_ < kAskEveryNs) return;
  asked_ns_ = now;
  for (SiteMessage& message : sites_->waiting(now - kAskEveryNs)) {
    for (Connection& one : connections_) send(one, message);
    incoming_.push_back(std::move(message));
  }
  deliver();
}

// ---- what comes in ------------------------------------------------------------------------------

// Whether something has come.
bool Relay::receive(std::size_t index) {
  Connection& connection = connections_[index];
  if (!connection.socket.is_open()) return false;
  std::array<std::byte, 65536> bytes;
  const ssize_t got = ::recv(connection.socket.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  if (got <= 0) {
    connection.socket.close();
    connection.unsent.clear();
    connection.lost_ns = now_ns();
    wake_sockets();  // they are to be looked at in a while
    return true;
  }
  connection.decoder.add(std::span(bytes).first(static_cast<std::size_t>(got)),
                         [&](SiteMessage message) { hear(index, std::move(message)); });
  return true;
}

void Relay::hear(std::size_t index, SiteMessage message) {
  if (sites_ == nullptr) return incoming_.push_back(std::move(message));
  sites_->hear(index + 1, message);
}

void Relay::deliver() {
  while (!incoming_.empty() && deliver_next()) {
  }
}

// False: the rest of a batch has not come yet, or there is no room for it.
bool Relay::deliver_next() {
  std::size_t count = 1;
  while (incoming_[count - 1].more) {
    if (++count > incoming_.size()) return false;
  }
  const auto end = incoming_.begin() + static_cast<std::ptrdiff_t>(count);
  const std::vector<SiteMessage> messages(incoming_.begin(), end);
  const SiteMessage& first = messages.front();
  if (first.kind == Said::kWaits) {
    auto lacking = board_.lacking(first.name);
    if (!lacking.empty()) {
      to_coordinator({.kind = Said::kLacks, .name = first.name, .ranks = std::move(lacking)});
    }
  }
  if (first.kind == Said::kLeft && first.failure && !over_) {
    on_failure_({.kind = *first.failure, .text = first.text});
  }
  if (!board_.hear(messages)) return false;
  if (first.kind == Said::kLeft) {
    over_ = true;
    ended_.notify_all();
  }
  incoming_.erase(incoming_.begin(), end);
  return true;
}

// ---- what fails ---------------------------------------------------------------------------------

void Relay::give_up_lost() {
  if (over_) return;
  const std::uint64_t now = now_ns();
  for (Connection& one : connections_) {
    if (one.lost_ns == 0 || now - one.lost_ns < kLostNs) continue;
    one.lost_ns = 0;
    fail(one.leader + " has ended: its connection is closed");
    return;
  }
}

void Relay::fail(const std::string& why) noexcept {
  try {
    const SiteMessage left{.kind = Said::kLeft, .failure = Failure::kPeerLost, .text = why};
    if (sites_ == nullptr) {
      incoming_.assign(1, left);
      return deliver();
    }
    sites_->hear(0, left);
    decide();
  } catch (const std::exception&) {
    over_ = true;  // a peer has died while it held the board's lock, as all others see
  }
}

}  // namespace gradred
