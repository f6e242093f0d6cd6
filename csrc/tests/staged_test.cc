// Host memory of calls on device arrays. It must not be reused for another call while the device
// copies.

#include "families/devices/staged.h"

#include <memory>
#include <set>
#include <vector>

#include "expect.h"

namespace gradred::testing {
namespace {

// A device whose streams complete their work when the test allows it. It records the host memory
// that was released to it.
class Slow final : public DeviceMemory {
 public:
  std::string name() const override { return "a slow device"; }
  std::byte* allocate(std::size_t bytes) override { return new std::byte[bytes]; }
  void release(std::byte* address) noexcept override { delete[] address; }
  std::byte* allocate_host(std::size_t bytes) override {
    host_.emplace_back(bytes);
    ++in_use;
    return host_.back().data();
  }
  void release_host(std::byte*) noexcept override { --in_use; }
  std::unique_ptr<DeviceStream> open_stream() override { return std::make_unique<Copies>(*this); }

  bool done = false, fails = false;
  int in_use = 0;

 private:
  class Copies final : public DeviceStream {
   public:
    explicit Copies(Slow& device) : device_(device) {}
    void copy(void*, const void*, std::size_t) override { ++given_; }
    void reduce(const Reduction&, void*, const void*, const void*, std::size_t) override {}
    void scale(void*, std::size_t, DType, double, bool) override {}
    void wait_for(const RecordedEvent&) override {}
    bool ready() override {
      if (device_.fails) throw DeviceError("the device has failed");
      return device_.done || given_ == 0;
    }
    std::uint64_t mark() override { return given_; }
    bool has_passed(std::uint64_t) override { return ready(); }

   private:
    Slow& device_;
    std::uint64_t given_ = 0;
  };

  std::vector<std::vector<std::byte>> host_;
};

Call call_on(Slow& device, std::vector<std::byte>& data) {
  const Memory memory(device);
  return {.kind = Kind::kAllreduce,
          .out = {data.data(), memory},
          .order = std::make_shared<const CallOrder>(),
          .count = data.size()};
}

void given_back_when_all_is_done(bool flows) {
  Slow device;
  std::vector<std::byte> data(std::size_t{3} << 20);
  {
    Staging staging(call_on(device, data), 0, 2, flows);
    expect(!staging.input_is_there() && device.in_use == 1, "the input is on its way");
    device.done = true;
    expect(staging.input_is_there() && staging.has_input(data.size()), "the input is there");
    staging.copy_result();
  }
  expect(device.in_use == 0, "host memory is given back");
}

void kept_where_a_call_is_cut_off(bool flows) {
  for (const bool fails : {false, true}) {
    Slow device;
    std::vector<std::byte> data(std::size_t{3} << 20);
    {
      const Staging staging(call_on(device, data), 0, 2, flows);
    }
    expect(device.in_use == 1, "the device still writes there");
    device.done = true;
    {
      Staging staging(call_on(device, data), 0, 2, flows);
      device.done = false;
      device.fails = fails;
      staging.copy_result();
    }
    expect(device.in_use == 2, "the device still reads there");
  }
}

}  // namespace
}  // namespace gradred::testing

int main() {
  using namespace gradred::testing;
  for (const bool flows : {false, true}) {
    given_back_when_all_is_done(flows);
    kept_where_a_call_is_cut_off(flows);
  }
  return report("staged_test");
}
