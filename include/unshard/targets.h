// Every output tensor and what it is made of. Plain values: no tensor is built, and nothing is listed per part.
//
// A target is a few terms. A term is a loop nest over one source tensor:
//     target[target_start + sum_k i_k * target_step_k] = source[source_start + sum_k i_k * source_step_k],   0 <= i_k < extent_k
// where axis k moves along one dimension of the source and one of the target. So a copy has one axis per dimension; a transposition swaps
// target_dim; one expert of a stack has a source_start and no axis in dimension 0; interleaved gate and up have source_step 2; a q projection inside a fused qkv is
// an axis over groups and one over rows. A window's owner expands the terms for that window only (for_each_part).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "unshard/catalog.h"
#include "unshard/tensor.h"

namespace unshard {

struct Axis {
  std::uint64_t extent = 0;
  std::uint8_t source_dim = 0;
  std::uint8_t target_dim = 0;
  std::uint64_t source_step = 1;
  std::uint64_t target_step = 1;
  friend bool operator==(const Axis&, const Axis&) = default;
};

struct Term {
  TensorId source = 0;
  Shape source_start;  ///< of the source's rank
  Shape target_start;  ///< of the target's rank
  std::vector<Axis> axes;
  friend bool operator==(const Term&, const Term&) = default;
};

struct Target {
  std::string name;  ///< as published
  DType dtype = DType::f32;
  Shape shape;
  std::vector<Term> terms;  ///< cover the target exactly once (proven by check_targets)
};

/// A source tensor that no target uses, and why: "tied copy of model.embed_tokens.weight", "dropped by --drop".
struct Unused {
  std::string name;
  std::string reason;
};

struct Targets {
  std::vector<Target> targets;  ///< in the order in which transformers would save them
  std::vector<Unused> unused;
};

/// A rectangular piece of a term: source box (with steps) to target box. Dimension d of the target box is dimension source_dim[d] of the source box
/// (-1: the target dimension has extent 1 here and no source dimension).
struct Part {
  TensorId source = 0;
  Box source_box;                       ///< offset and extent counted in steps: source index = offset + i * step
  Shape source_step;                    ///< of each source dimension
  Box target_box;                       ///< offset and extent counted in steps likewise
  Shape target_step;                    ///< of each target dimension
  std::array<std::int8_t, max_rank> source_dim{};
};

/// Local, pure. The target's one term as an identity copy of a whole source tensor of `shape`.
[[nodiscard]] Term copy_of(TensorId source, const Shape& shape);

/// Local, pure. Calls `part` for the parts of `target` that meet `box` (of the target), clipped to it.
void for_each_part(const Target& target, const Box& box, const std::function<void(const Part&)>& part);

/// Local, pure. Proves that the terms of `target` cover every element exactly once and stay inside their sources (shapes from `table`); throws
/// Error(internal) naming the target otherwise. Cost: terms × axes, not elements.
void check_target(const Target& target, const std::vector<TensorRow>& table);

}  // namespace unshard
