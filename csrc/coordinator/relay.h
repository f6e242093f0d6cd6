// What a site's rank 0 does for it: tells the other sites what is on its board, and the board what
// all have agreed on. On the coordinator's site it is the coordinator as well.
//
// Two threads, of which neither calls the MPI, and both sleep while there is nothing to do: one at
// the board, one at the sockets. The rank's own threads need not wake the first: they carry() what
// they have put on the board.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/board.h"
#include "coordinator/sites.h"
#include "coordinator/sockets.h"

namespace gradred {

class Relay {
 public:
  // Of the coordinator `sites`, and a connection to each other site; of others null, and one
  // connection. `leaders`: by connection, what the rank at its other end is called. `on_failure` is
  // called where a rank left because something had failed, before the board says so.
  Relay(Board& board, std::unique_ptr<Sites> sites, std::vector<Socket> connections,
        std::vector<std::string> leaders, std::function<void(const FailureReport&)> on_failure);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // After the calling thread has changed the board. `soon`: it may do so again in a moment, and
  // what it does then goes by the same packet.
  void carry(bool soon = false) noexcept;
  // The same, and hears what has come: a thread that waits need not be woken for it. Whether
  // anything has. Until rest(), or for a moment, the thread at the sockets leaves them to it.
  bool look() noexcept;
  void rest() noexcept;
  // This rank has left: waits a moment until the other sites know, so that it may end.
  void settle() noexcept;

 private:
  struct Connection {
    Socket socket;
    std::string leader;
    SiteEncoder encoder{};
    SiteDecoder decoder{};
    std::vector<std::byte> unsent{};
    bool is_full = false;       // the socket: it says when there is room again
    std::uint64_t lost_ns = 0;  // when it broke; 0: it has not
  };

  void watch_board();
  void watch_sockets();
  bool hear_all();
  void hear_own(std::uint64_t name);
  void listen(bool on);
  void set_timer();
  void time_out_in(std::uint64_t nanoseconds);
  bool receive(std::size_t index);
  void hear(std::size_t index, SiteMessage message);
  void carry_locked();
  void to_coordinator(const SiteMessage& message);
  void decide();
  void send(Connection& connection, const SiteMessage& message);
  void flush(Connection& connection);
  void flush_all();
  void flush_soon();
  void deliver();
  bool deliver_next();
  void ask_for_missing();
  void give_up_lost();
  void fail(const std::string& why) noexcept;
  void wake_sockets() noexcept;

  Board& board_;
  const std::function<void(const FailureReport&)> on_failure_;
  std::mutex mutex_;  // of what follows
  std::condition_variable ended_;
  std::unique_ptr<Sites> sites_;  // of the coordinator
  std::vector<Connection> connections_;
  std::deque<SiteMessage> incoming_;  // for the board
  std::uint64_t asked_ns_ = 0;
  bool over_ = false;  // a rank has left, and the board knows
  std::uint64_t flushed_ns_ = 0;
  std::uint64_t looked_ns_ = 0;
  bool listens_ = true;                 // watch_sockets(), to what comes from other sites
  std::uint64_t due_ns_ = 0;            // when timer_ wakes it; 0: never
  std::atomic<std::uint64_t> seen_{0};  // of what the board has to say
  std::atomic<bool> stopping_{false};
  Socket wake_;                 // an eventfd
  Socket timer_;                // a timerfd
  Socket sites_set_, all_set_;  // epoll's: the connections; these as one, wake_ and timer_
  std::thread board_thread_, socket_thread_;
};

}  // namespace gradred
