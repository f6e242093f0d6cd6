// What gradred's notices need of an MPI, for ranks in one process: messages between two ranks
// arrive in the order in which they were sent. A send and a receive take some looks to complete, as
// in an MPI that is busy.
#pragma once

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <vector>

#include "mpi/mpi.h"

namespace gradred::testing {

class MpiInMemory {
 public:
  static constexpr int kAnySource = -1;

  // From now on this process has no other MPI.
  static void install() {
    mpi::Mpi& mpi = mpi::for_tests();
    mpi.is.any_source = kAnySource;
    mpi.is.request_null = 0;
    mpi.call.Isend = [](const void* data, int count, mpi::Handle, int peer, int tag, mpi::Handle,
                        mpi::Handle* request) {
      const auto* const first = static_cast<const std::byte*>(data);
      return world().send({rank(), peer, tag, {first, first + count}}, *request);
    };
    mpi.call.Irecv = [](void* data, int, mpi::Handle, int peer, int tag, mpi::Handle,
                        mpi::Handle* request) {
      return world().receive({data, rank(), peer, tag}, *request);
    };
    mpi.call.Test = [](mpi::Handle* request, int* done, void*) {
      return world().test(*request, *done);
    };
    mpi.call.Iprobe = [](int peer, int tag, mpi::Handle, int* there, void* status) {
      return world().probe(peer, tag, *there, status);
    };
    mpi.call.Get_count = [](const void* status, mpi::Handle, int* count) {
      std::memcpy(count, static_cast<const int*>(status) + 1, sizeof *count);
      return 0;
    };
  }
  // The rank that this thread is.
  static int& rank() {
    thread_local int mine = 0;
    return mine;
  }
  // Messages that no rank has received.
  static std::size_t unread() {
    const std::lock_guard lock(world().mutex_);
    return world().messages_.size();
  }

 private:
  struct Message {
    int from, to, tag;
    std::vector<std::byte> data;
  };
  struct Request {
    void* data = nullptr;  // nullptr: of a send
    int to = 0, from = 0, tag = 0;
    int looks = 2;
    bool matched = false;

    void match(const Message& message) {
      std::ranges::copy(message.data, static_cast<std::byte*>(data));
      matched = true;
    }
  };

  static MpiInMemory& world() {
    static auto& made = *new MpiInMemory;
    return made;
  }
  auto first(int from, int to, int tag) {
    return std::ranges::find_if(messages_, [=](const Message& message) {
      const bool fits = from == kAnySource || message.from == from;
      return fits && message.to == to && message.tag == tag;
    });
  }
  // A message is matched once, by the first receive that fits.
  void match(Request& asked) {
    const auto found = first(asked.from, asked.to, asked.tag);
    if (found == messages_.end()) return;
    asked.match(*found);
    messages_.erase(found);
  }
  int send(Message message, mpi::Handle& request) {
    const std::lock_guard lock(mutex_);
    messages_.push_back(std::move(message));
    requests_[request = ++last_] = {};
    return 0;
  }
  int receive(const Request& asked, mpi::Handle& request) {
    const std::lock_guard lock(mutex_);
    match(requests_[request = ++last_] = asked);
    return 0;
  }
  int test(mpi::Handle& request, int& done) {
    const std::lock_guard lock(mutex_);
    done = 1;
    if (request == 0) return 0;
    Request& one = requests_.at(request);
    if (one.data != nullptr && !one.matched) match(one);
    done = --one.looks <= 0 && (one.data == nullptr || one.matched) ? 1 : 0;
    if (done == 0) return 0;
    requests_.erase(request);
    request = 0;
    return 0;
  }
  int probe(int from, int tag, int& there, void* status) {
    const std::lock_guard lock(mutex_);
    const auto found = first(from, rank(), tag);
    there = found != messages_.end() ? 1 : 0;
    if (there == 0) return 0;
    const int source_and_count[] = {found->from, static_cast<int>(found->data.size())};
    std::memcpy(status, source_and_count, sizeof source_and_count);
    return 0;
  }

  std::mutex mutex_;
  std::list<Message> messages_;
  std::map<mpi::Handle, Request> requests_;
  mpi::Handle last_ = 0;
};

}  // namespace gradred::testing
