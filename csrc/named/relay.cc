#include "named/relay.h"

#include <sys/epoll.h>
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

// The interval at which groups are asked which ranks a name waits for.
constexpr std::uint64_t kAskEveryNs = 500'000'000;
// How long to wait after a connection has broken. The launcher may report the same rank meanwhile,
// and it knows how its process ended.
constexpr std::uint64_t kLostNs = 400'000'000;
// Messages wait for company at most so long, and only if the last packet was sent less than this
// ago.
constexpr std::uint64_t kTogetherNs = 20'000;
// If a thread that has read the sockets reads them again within this time, the socket thread does
// not take over.
constexpr std::uint64_t kLooksAgainNs = 200'000;
constexpr std::uint64_t kRoomNs = 1'000'000;  // the interval at which a full log is tried again
constexpr std::chrono::seconds kSettle{1};

void watch(const Socket& set, int operation, int fd, std::uint32_t events, std::uint64_t name) {
  epoll_event event{.events = events, .data = {.u64 = name}};
  if (epoll_ctl(set.fd(), operation, fd, &event) != 0) {
    throw TransportError("named operations: a connection cannot be watched");
  }
}

enum : std::uint64_t { kConnections, kWake, kTimer };  // in all_set_

}  // namespace

Relay::Relay(Board& board, std::unique_ptr<Coordinator> coordinator,
             std::vector<Socket> connections, std::vector<std::string> leaders,
             std::function<void(const FailureReport&)> on_failure)
    : board_(board),
      on_failure_(std::move(on_failure)),
      coordinator_(std::move(coordinator)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
      connections_set_(epoll_create1(EPOLL_CLOEXEC)),
      all_set_(epoll_create1(EPOLL_CLOEXEC)) {
  for (const Socket* one : {&wake_, &timer_, &connections_set_, &all_set_}) {
    if (!one->is_open()) throw TransportError("named operations: no file descriptor is left");
  }
  watch(all_set_, EPOLL_CTL_ADD, connections_set_.fd(), EPOLLIN, kConnections);
  watch(all_set_, EPOLL_CTL_ADD, wake_.fd(), EPOLLIN, kWake);
  watch(all_set_, EPOLL_CTL_ADD, timer_.fd(), EPOLLIN, kTimer);
  for (std::size_t i = 0; i < connections.size(); ++i) {
    connections_.push_back({.socket = std::move(connections[i]), .leader = std::move(leaders[i])});
    watch(connections_set_, EPOLL_CTL_ADD, connections_[i].socket.fd(), EPOLLIN, i);
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
  if (board_.outgoing().target == seen_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  carry_locked();
  soon ? flush_soon() : flush_all();
}

bool Relay::look() noexcept {
  const std::lock_guard lock(mutex_);
  carry_locked();
  flush_all();
  bool any = true;
  try {
    any = receive_all();
    looked_ns_ = now_ns();
    if (listens_) listen(false);
    set_timer();
  } catch (const std::exception& error) {
    fail(error.what());
  }
  flush_all();
  return any;
}

void Relay::rest() noexcept {
  const std::lock_guard lock(mutex_);
  if (!listens_) listen(true);
}

// After listen(true), messages that have arrived meanwhile wake watch_sockets() at once.
void Relay::listen(bool on) {
  epoll_event event{.events = on ? EPOLLIN : 0U, .data = {.u64 = kConnections}};
  epoll_ctl(all_set_.fd(), EPOLL_CTL_MOD, connections_set_.fd(), &event);
  listens_ = on;
}

void Relay::settle() noexcept {
  carry();
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, kSettle, [this] { return over_; });
}

// ---- the threads --------------------------------------------------------------------------------

void Relay::watch_board() {
  while (true) {
    const Awaited next = board_.outgoing();
    // Checked after outgoing() was read: otherwise the ring of the destructor could be missed.
    if (stopping_) return;
    carry();
    Sleep::until(next, Sleep::kForever);
  }
}

void Relay::watch_sockets() {
  while (!stopping_) {
    std::array<epoll_event, 3> events;
    const int count = epoll_wait(all_set_.fd(), events.data(), events.size(), -1);
    const std::lock_guard lock(mutex_);
    for (int i = 0; i < count; ++i) read_event(events[static_cast<std::size_t>(i)].data.u64);
    try {
      if (listens_) receive_all();
      deliver();
      if (coordinator_ != nullptr) decide();  // the log may have room again
      ask_for_missing();
      give_up_lost();
    } catch (const std::exception& error) {
      fail(error.what());
    }
    flush_all();
    set_timer();
  }
}

// Reads the event of wake_ or timer_.
void Relay::read_event(std::uint64_t name) {
  if (name == kConnections) return;
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got =
      ::read(name == kWake ? wake_.fd() : timer_.fd(), &count, sizeof count);
  if (name != kTimer) return;
  due_ns_ = 0;
  if (!listens_ && now_ns() - looked_ns_ >= kLooksAgainNs / 2) listen(true);
}

// Returns whether anything was received.
bool Relay::receive_all() {
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(connections_set_.fd(), events.data(), events.size(), 0);
  if (count <= 0) return false;
  bool any = false;
  for (int i = 0; i < count; ++i) {
    const epoll_event& one = events[static_cast<std::size_t>(i)];
    const std::size_t index = one.data.u64;
    if ((one.events & EPOLLOUT) != 0) flush(connections_[index]);
    if ((one.events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) any |= receive(index);
  }
  deliver();
  if (coordinator_ != nullptr) decide();
  return any;
}

// Sets the timer for what watch_sockets() must do even if no message arrives.
void Relay::set_timer() {
  if (!incoming_.empty()) time_out_in(kRoomNs);
  if (!listens_) time_out_in(kLooksAgainNs);
  const auto is_lost = [](const Connection& one) { return one.lost_ns != 0; };
  if (!over_ && std::ranges::any_of(connections_, is_lost)) time_out_in(kLostNs / 8);
  if (coordinator_ != nullptr && coordinator_->any_waiting()) time_out_in(kAskEveryNs);
}

// The socket thread wakes after this time at the latest.
void Relay::time_out_in(std::uint64_t nanoseconds) {
  const std::uint64_t due = now_ns() + nanoseconds;
  if (due_ns_ != 0 && due_ns_ <= due) return;
  due_ns_ = due;
  const itimerspec once{.it_interval = {},
                        .it_value = {.tv_sec = 0, .tv_nsec = static_cast<long>(nanoseconds)}};
  timerfd_settime(timer_.fd(), 0, &once, nullptr);
}

void Relay::wake_sockets() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t sent = ::write(wake_.fd(), &one, sizeof one);
}

// ---- what goes out ------------------------------------------------------------------------------

void Relay::carry_locked() {
  try {
    seen_ = board_.outgoing().target;
    for (const HostGroupMessage& message : board_.take_outgoing()) to_coordinator(message);
    if (coordinator_ != nullptr) decide();
  } catch (const std::exception& error) {
    fail(error.what());
  }
  set_timer();
}

void Relay::to_coordinator(const HostGroupMessage& message) {
  coordinator_ != nullptr ? coordinator_->receive(0, message) : send(connections_.front(), message);
}

// While no rank of this host group has taken the last entries, no more are decided on, so that
// names that become ready meanwhile join the next batch. is_taken() has asked the board to notify
// this relay when a rank has taken them.
void Relay::decide() {
  while (coordinator_->any_agreed() && (coordinator_->is_over() || board_.is_taken())) {
    for (HostGroupMessage& message : coordinator_->take()) {
      for (Connection& one : connections_) send(one, message);
      incoming_.push_back(std::move(message));
    }
    deliver();
  }
}

void Relay::send(Connection& connection, const HostGroupMessage& message) {
  if (connection.socket.is_open()) connection.encoder.add(message, connection.unsent);
}

// Sends everything that is encoded by now, in one packet for each host group.
void Relay::flush_all() {
  bool any = false;
  for (Connection& one : connections_) {
    if (one.unsent.empty() || one.is_full) continue;
    flush(one);
    any = true;
  }
  if (any) flushed_ns_ = now_ns();
}

// Sends now if the last packet was sent a while ago, else in a moment.
void Relay::flush_soon() {
  const auto has_unsent = [](const Connection& one) { return !one.unsent.empty(); };
  if (std::ranges::none_of(connections_, has_unsent)) return;
  if (now_ns() - flushed_ns_ >= kTogetherNs) return flush_all();
  time_out_in(kTogetherNs);
}

void Relay::flush(Connection& connection) {
  std::vector<std::byte>& unsent = connection.unsent;
  std::size_t sent = 0;
  while (sent < unsent.size()) {
    const ssize_t count = ::send(connection.socket.fd(), unsent.data() + sent, unsent.size() - sent,
                                 MSG_DONTWAIT | MSG_NOSIGNAL);
    // The socket is full, or the connection is broken, which receive() finds out.
    if (count <= 0) break;
    sent += static_cast<std::size_t>(count);
  }
  unsent.erase(unsent.begin(), unsent.begin() + static_cast<std::ptrdiff_t>(sent));
  if (connection.is_full == !unsent.empty()) return;
  connection.is_full = !unsent.empty();
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 0}};
  if (connection.is_full) event.events |= EPOLLOUT;
  event.data.u64 = static_cast<std::uint64_t>(&connection - connections_.data());
  epoll_ctl(connections_set_.fd(), EPOLL_CTL_MOD, connection.socket.fd(), &event);
}

// Asks which ranks have not submitted the names for which some groups wait.
void Relay::ask_for_missing() {
  if (coordinator_ == nullptr || over_) return;
  const std::uint64_t now = now_ns();
  if (now - asked_ns_ < kAskEveryNs) return;
  asked_ns_ = now;
  for (HostGroupMessage& message : coordinator_->waiting(now - kAskEveryNs)) {
    for (Connection& one : connections_) send(one, message);
    incoming_.push_back(std::move(message));
  }
  deliver();
}

// ---- what comes in ------------------------------------------------------------------------------

// Returns whether anything was received.
bool Relay::receive(std::size_t index) {
  Connection& connection = connections_[index];
  if (!connection.socket.is_open()) return false;
  std::array<std::byte, 65536> bytes;
  const ssize_t got = ::recv(connection.socket.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  if (got <= 0) {
    // A forked child may hold the connection open, too: closing it here would not remove it from
    // the set.
    epoll_ctl(connections_set_.fd(), EPOLL_CTL_DEL, connection.socket.fd(), nullptr);
    connection.socket.close();
    connection.unsent.clear();
    connection.is_full = false;
    connection.lost_ns = now_ns();
    set_timer();
    return true;
  }
  connection.decoder.add(std::span(bytes).first(static_cast<std::size_t>(got)),
                         [&](HostGroupMessage message) { pass_on(index, std::move(message)); });
  return true;
}

void Relay::pass_on(std::size_t index, HostGroupMessage message) {
  if (coordinator_ == nullptr) return incoming_.push_back(std::move(message));
  coordinator_->receive(index + 1, message);
}

void Relay::deliver() {
  while (!incoming_.empty() && deliver_next()) {
  }
}

// Returns false if the rest of a batch has not arrived, or if the log has no room.
bool Relay::deliver_next() {
  std::size_t count = 1;
  while (incoming_[count - 1].more) {
    if (++count > incoming_.size()) return false;
  }
  const auto end = incoming_.begin() + static_cast<std::ptrdiff_t>(count);
  const std::vector<HostGroupMessage> messages(incoming_.begin(), end);
  const HostGroupMessage& first = messages.front();
  if (first.kind == Said::kWaits) {
    auto lacking = board_.lacking(first.name);
    if (!lacking.empty()) {
      to_coordinator({.kind = Said::kLacks, .name = first.name, .ranks = std::move(lacking)});
    }
  }
  if (first.kind == Said::kLeft && first.failure && !over_) {
    on_failure_({.kind = *first.failure, .text = first.text});
  }
  if (!board_.receive(messages)) return false;
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
    const HostGroupMessage left{.kind = Said::kLeft, .failure = Failure::kPeerLost, .text = why};
    if (coordinator_ == nullptr) {
      incoming_.assign(1, left);
      return deliver();
    }
    coordinator_->receive(0, left);
    decide();
  } catch (const std::exception&) {
    // A peer's process has ended while it held the board's lock; the other ranks notice it as well.
    over_ = true;
  }
}

}  // namespace gradred
