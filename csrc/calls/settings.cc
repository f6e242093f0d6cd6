#include "calls/settings.h"

namespace gradred {

Settings& settings() {
  static auto* const settings = new Settings;  // never destroyed, as handlers at exit read it
  return *settings;
}

}  // namespace gradred
