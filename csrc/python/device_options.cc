// Memory for NumPy arrays, and the location of other libraries' arrays.
#include "python/device_options.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <variant>

#include "base/result_hash.h"
#include "device/exported_array.h"
#include "device/location.h"
#include "device/readable.h"
#include "node/memory/array_memory.h"
#include "python/gil.h"
#include "python/py_call.h"
#include "runtime/environment.h"
#include "runtime/knobs.h"

namespace py = pybind11;

namespace gradred {
namespace {

py::dict array_interface(const ArrayMemory& memory) {
  py::dict described;
  described["shape"] = py::make_tuple(memory.bytes());
  described["typestr"] = "|u1";
  described["data"] = py::make_tuple(reinterpret_cast<std::uintptr_t>(memory.data()), false);
  described["version"] = 3;
  return described;
}

// (descriptor, serial number, offset, bytes of arrays in the file), or None.
py::object array_place(std::uintptr_t address, std::size_t bytes) {
  const FilePart part = file_part(reinterpret_cast<const void*>(address), bytes);
  if (!part.place) return py::none();
  return py::make_tuple(part.place.fd, part.place.serial, part.offset, part.arrays);
}

// `files`: libraries that Python packages have installed, used where no knob names one.
device::Options read_device_options(const std::vector<std::string>& files) {
  device::Options options;
  options.folder = figures_folder();
  options.nccl_shares_devices = variable("NCCL_MULTI_RANK_GPU_ENABLE") == "1";
  for (const std::string& file : files) {
    const bool compiles = file.find("libnvrtc") != std::string::npos;
    const bool links = file.find("libnvJitLink") != std::string::npos;
    (compiles ? options.compilers : links ? options.linkers : options.collectives).push_back(file);
  }
  for (const KnobState& state : knob_states()) {
    const auto* const text = std::get_if<std::string>(&state.value);
    if (text == nullptr) continue;
    if (state.knob->name == "libcuda") options.driver = *text;
    if (state.knob->name == "libnvrtc") {
      options.compilers = {*text};
      options.linkers.insert(options.linkers.begin(), *text);  // one library may be both
    }
    if (state.knob->name == "libnccl") options.collectives = {*text};
  }
  return options;
}

struct KnownOptions {
  std::uint64_t changes = 0;  // knob_changes() at that time
  std::shared_ptr<const device::Options> options;
};
KnownOptions& known_options() {
  static KnownOptions known;
  return known;
}

}  // namespace

// Reading the knobs takes longer than the rest of a lookup, so they are read again only after the
// program has set one. The environment is read when the first array is used.
std::shared_ptr<const device::Options> device_options(const std::vector<std::string>& libraries) {
  if (auto known = known_device_options()) return known;
  const std::uint64_t changes = knob_changes();
  known_options() = {changes, std::make_shared<device::Options>(read_device_options(libraries))};
  return known_options().options;
}

std::shared_ptr<const device::Options> known_device_options() {
  const KnownOptions& known = known_options();
  return known.changes == knob_changes() ? known.options : nullptr;
}

namespace {

void copy_at_addresses(std::uintptr_t target, std::uintptr_t source, std::size_t bytes,
                       const std::optional<Placement>& placement) {
  const WithoutGil released;
  const std::shared_ptr<Stream> stream =
      placement ? placement->open_stream() : std::make_shared<Stream>(Memory());
  stream->copy(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), bytes);
  check(stream->finish(), "a copy on a device");
}

py::tuple locate(std::uintptr_t address, std::size_t bytes, std::optional<std::uint64_t> stream,
                 const std::vector<std::string>& libraries) {
  device::Location found;
  const auto options = device_options(libraries);  // the GIL makes it one thread at a time
  {
    const WithoutGil released;
    found = device::locate(reinterpret_cast<const void*>(address), bytes, stream, *options);
  }
  constexpr const char* kPlaces[] = {"host", "device", "nowhere"};
  return py::make_tuple(kPlaces[static_cast<std::size_t>(found.place)], found.text,
                        py::cast(found.memory, py::return_value_policy::reference));
}

bool is_readable(std::uintptr_t address, std::size_t bytes) {
  return device::is_readable(reinterpret_cast<const void*>(address), bytes);
}

std::unique_ptr<device::ExportedArray> exported_array(std::size_t bytes, int ordinal,
                                                      const std::vector<std::string>& libraries) {
  const auto options = device_options(libraries);
  const WithoutGil released;
  return std::make_unique<device::ExportedArray>(bytes, ordinal, *options);
}

// Loads the driver. Throws DeviceError, which names what is missing.
std::string cuda_driver() {
  const auto options = device_options({});
  const WithoutGil released;
  return device::Driver::load(options->driver).version_text();
}

}  // namespace

void bind_memory(py::module_& m) {
  py::class_<ArrayMemory>(m, "ArrayMemory",
                          "Zero bytes that forked children share; freed with the object.")
      .def(py::init<std::size_t>(), py::arg("bytes"), py::call_guard<WithoutGil>())
      .def_property_readonly("__array_interface__", &array_interface);
  m.def("array_place", &array_place, py::arg("address"), py::arg("bytes"),
        "Where other processes of the host find these bytes of arrays of `ArrayMemory`: the "
        "descriptor and the serial number of the file in this process, the offset of the bytes in "
        "it, and where its note begins. None: they lie in no such file.");
  py::class_<device::ExportedArray>(
      m, "ExportedArray",
      "Memory of a GPU that peers read where it lies; given back with the object. Device -1: that "
      "of the context that is current in this thread, else the first.")
      .def(py::init(&exported_array), py::arg("bytes"), py::arg("device"), py::arg("libraries"))
      .def_property_readonly("address", &device::ExportedArray::address)
      .def_property_readonly("device", &device::ExportedArray::device);
  py::class_<DeviceMemory, std::unique_ptr<DeviceMemory, py::nodelete>>(
      m, "DeviceMemory", "The memory of a device, which lives as long as the process.")
      .def_property_readonly("name", &DeviceMemory::name)
      .def_property_readonly("ordinal", &DeviceMemory::ordinal);
  py::class_<Placement>(m, "Placement",
                        "Where the arrays of a call lie; None: in host memory. What comes first "
                        "are streams of the program's, each with the memory that it works on.")
      .def(py::init([](DeviceMemory* send, DeviceMemory* recv,
                       std::vector<std::pair<DeviceMemory*, std::uint64_t>> after,
                       std::optional<std::uint64_t> stream) {
             return Placement{send, recv, std::move(after), stream};
           }),
           py::arg("send"), py::arg("recv"), py::arg("after"), py::arg("stream") = py::none());
  m.def("copy_bytes", &copy_at_addresses, py::arg("target"), py::arg("source"), py::arg("nbytes"),
        py::arg("placement"), "Blocks until the bytes are there, wherever both lie.");
  m.def(
      "result_hash",
      [](std::uintptr_t address, std::size_t bytes) {
        const WithoutGil released;
        return hash_of_result(reinterpret_cast<const void*>(address), bytes);
      },
      py::arg("address"), py::arg("nbytes"), "Return the hash of these bytes of host memory.");
  m.def("locate", &locate, py::arg("address"), py::arg("nbytes"), py::arg("stream"),
        py::arg("libraries"),
        "Return where memory lies that an array says is a GPU's, in words, and the device's "
        "memory; loads "
        "no driver.");
  m.def("is_readable", &is_readable, py::arg("address"), py::arg("nbytes"),
        "Return whether the host may read the first and the last byte; asks no driver.");
  m.def("cuda_driver", &cuda_driver,
        "Return the version of the CUDA driver that GRADRED_LIBCUDA names, which it loads.");
}

}  // namespace gradred
