#include "svd_energy.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "unshard/error.h"

namespace unshard {
namespace {

std::string percent(double part) {
  std::string text(16, '\0');
  text.resize(static_cast<std::size_t>(std::snprintf(text.data(), text.size(), "%.3f", part * 100)));
  return text + " %";
}

}  // namespace

std::string modules_json(const Differences& found, const std::vector<Energy>& energies) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < energies.size(); ++i) {
    list.push_back({{"module", found.pairs[i].module},
                    {"rank", found.pairs[i].rank},
                    {"captured_energy", energies[i].part()},
                    {"residual_norm", std::sqrt(std::max(0.0, 1 - energies[i].part()))}});
  }
  return list.dump();
}

void say_energies(const Session& session, const Differences& found, const std::vector<Energy>& energies) {
  if (energies.empty() || session.comm.rank() != 0) return;
  double norm = 0, captured = 0;
  std::size_t worst = 0;
  for (std::size_t i = 0; i < energies.size(); ++i) {
    norm += energies[i].square_norm;
    captured += energies[i].captured;
    if (energies[i].part() < energies[worst].part()) worst = i;
    session.log.detail(printable(found.pairs[i].module) + ": rank " + std::to_string(found.pairs[i].rank) + " captures " +
                       percent(energies[i].part()) + " of the energy");
  }
  session.log.line("The pairs capture " + percent(norm == 0 ? 1 : captured / norm) + " of the energy of the differences; least, in " +
                   printable(found.pairs[worst].module) + ", " + percent(energies[worst].part()));
}

}  // namespace unshard
