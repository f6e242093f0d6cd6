// Messages between two ranks: through shared memory, and waits for messages of MPI.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "comm/mailboxes.h"
#include "engine/driving.h"
#include "engine/waiting.h"
#include "mpi/mpi.h"
#include "python/gil.h"
#include "python/kept.h"
#include "python/mpi4py.h"
#include "python/one_thread.h"
#include "python/py_operation.h"
#include "python/wait_hook.h"

namespace py = pybind11;

namespace gradred {
namespace {

// A message in flight, which keeps alive the object that it uses.
class PyMessage final : public PyOperation {
 public:
  PyMessage(std::shared_ptr<MessageOperation> message, py::object held)
      : PyOperation(message), message_(std::move(message)), held_(std::move(held)) {}
  ~PyMessage() {
    if (!message_->ended() || message_->holds_memory())
      keep_until_ended(message_, held_.release().ptr());
  }
  PyMessage(const PyMessage&) = delete;
  PyMessage& operator=(const PyMessage&) = delete;

  const MessageOperation& message() const { return *message_; }

 private:
  const std::shared_ptr<MessageOperation> message_;
  py::object held_;
};

// Releases the GIL for long messages only. Releasing it takes longer than copying a short message.
class GilForShort {
 public:
  explicit GilForShort(std::size_t bytes) {
    constexpr std::size_t kShort = std::size_t{16} << 10;
    if (bytes > kShort) released_.emplace();
  }

 private:
  std::optional<WithoutGil> released_;
};

std::shared_ptr<Mailboxes> mailboxes(const py::object& comm, const std::vector<int>& ranks) {
  Communicator& communicator = communicator_of(comm.ptr());
  communicator.call_ranks(ranks);
  const OneThread one_thread(communicator);
  GilHook hook;
  return Mailboxes::create(communicator.shared(), hook);
}

std::shared_ptr<PyMessage> send_message(Mailboxes& self, std::uintptr_t data, std::size_t bytes,
                                        int to, std::int64_t tag, py::object held) {
  let_ended_go();
  std::shared_ptr<MessageOperation> message;
  {
    const GilForShort gil(bytes);
    message = self.send(reinterpret_cast<const std::byte*>(data), bytes, to, tag);
  }
  return std::make_shared<PyMessage>(std::move(message), std::move(held));
}

std::shared_ptr<PyMessage> receive_message(Mailboxes& self, std::uintptr_t data, std::size_t bytes,
                                           std::optional<int> source, std::int64_t tag,
                                           py::object held) {
  let_ended_go();
  const int from = source.value_or(MessageOperation::kAnyone);
  std::shared_ptr<MessageOperation> message;
  {
    const GilForShort gil(bytes);
    message = self.receive(reinterpret_cast<std::byte*>(data), bytes, from, tag);
  }
  return std::make_shared<PyMessage>(std::move(message), std::move(held));
}

// Calls a function every 50 ms. It must not be Python code, which could run a signal handler while
// MPI uses the memory of the message.
class LookingHook final : public RequestHook {
 public:
  explicit LookingHook(py::object look) : look_(std::move(look)) {}

  void waiting() override {
    RequestHook::waiting();
    constexpr std::uint64_t kEveryNs = 50'000'000;
    const std::uint64_t now = now_ns();
    if (next_look_ns_ == 0) next_look_ns_ = now + kEveryNs;
    if (now < next_look_ns_) return;
    next_look_ns_ = now + kEveryNs;
    take_back();
    look_();
    long_work();
  }

 private:
  const py::object look_;
  std::uint64_t next_look_ns_ = 0;
};

// Waits for a message of MPI. Repeated tests in Python would take 1 us each, with the GIL held.
// `request` and `status` are the addresses of MPI's objects, which mpi4py holds. Returns None if
// the message has not ended within `seconds`, else MPI's error code (0: no error). `look` raises if
// it cannot end.
py::object wait_for_message(std::uintptr_t request, std::uintptr_t status, double seconds,
                            py::object look) {
  const std::uint64_t deadline = now_ns() + static_cast<std::uint64_t>(1e9 * seconds);
  auto* const its_request = reinterpret_cast<mpi::Handle*>(request);
  auto* const its_status = reinterpret_cast<void*>(status);
  int done = 0, code = 0;
  {
    LookingHook hook(std::move(look));
    Backoff backoff;
    while (true) {
      code = mpi::get().call.Test(its_request, &done, its_status);
      if (done != 0 || code != 0) break;
      hook.long_work();  // the next test runs without the GIL
      if (now_ns() >= deadline) break;
      backoff.wait([&hook] {
        hook.waiting();
        drive();
      });
    }
  }
  return done != 0 || code != 0 ? py::object(py::int_(code)) : py::none();
}

}  // namespace

void bind_messages(py::module_& m) {
  py::class_<PyMessage, std::shared_ptr<PyMessage>>(m, "Message")
      .def("wait", &PyMessage::wait_at_most, py::arg("timeout") = std::nullopt)
      .def("done", &PyMessage::test)
      .def(
          "add_done_callback",
          [](const py::object& self, const py::object& function) {
            self.cast<PyMessage&>().add_done_callback(function, self);
          },
          py::arg("fn"))
      .def_property_readonly("name", [](const PyMessage&) { return ""; })
      .def_property_readonly("way", [](const PyMessage&) { return "shared memory"; })
      .def_property_readonly("waits_for",
                             [](const PyMessage& self) { return self.message().waits_for(); })
      .def("source", [](const PyMessage& self) { return self.message().source(); });
  py::class_<Mailboxes, std::shared_ptr<Mailboxes>>(m, "Mailboxes")
      .def("send", &send_message, py::arg("data"), py::arg("nbytes"), py::arg("to"), py::arg("tag"),
           py::arg("held"))
      .def("receive", &receive_message, py::arg("data"), py::arg("nbytes"), py::arg("source"),
           py::arg("tag"), py::arg("held"))
      .def("close", &Mailboxes::close, py::call_guard<WithoutGil>());
  m.def("mailboxes", &mailboxes, py::arg("comm"), py::arg("ranks"),
        "Return the mailboxes of a communicator, of which nothing else is used; None where ranks "
        "share no memory. "
        "Blocking and collective. Errors call its ranks by these numbers, in its order.");
  m.def("wait_for_message", &wait_for_message, py::arg("request"), py::arg("status"),
        py::arg("seconds"), py::arg("look"),
        "Block until the MPI has ended a request, and return its error code; None if these seconds "
        "end before. `look` is called every 50 ms, and raises where a rank has ended.");
}

}  // namespace gradred
