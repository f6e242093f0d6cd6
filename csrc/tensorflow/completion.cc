#include "tensorflow/completion.h"

#include <string_view>

namespace gradred::tensorflow {

bool Completion::is_tensorflows(const void* function) {
  Dl_info found{};
  return function != nullptr && dladdr(function, &found) != 0 && found.dli_fname != nullptr &&
         std::string_view(found.dli_fname).find("tensorflow") != std::string_view::npos;
}

}  // namespace gradred::tensorflow
