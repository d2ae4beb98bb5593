// The sum of squares of a row or column is taken in double, element after element in the order of the tensor, by one rank: so it depends
// on nothing but the values.
#include "dora.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "assemble.h"
#include "fetch.h"
#include "unshard/agree.h"
#include "value_bytes.h"
#include "wire.h"

namespace unshard {
namespace {

/// What is read: for each decomposition the sum of base and update in fp32, and the magnitudes.
struct Work {
  Targets targets;
  Plan plan;
};

Work work_of(const Mapping& mapping, const std::vector<TensorRow>& table, int ranks) {
  Work work;
  OutputFile file;
  work.plan.ranks = ranks;
  work.plan.runs.resize(static_cast<std::size_t>(ranks));
  const auto add = [&](Target target, int rank) {
    const std::uint64_t bytes = volume(target.shape) * info(target.dtype).size_bytes;
    work.plan.layout.placed.push_back({static_cast<std::uint32_t>(work.targets.targets.size()), 0, file.size_bytes, bytes});
    work.plan.runs[static_cast<std::size_t>(rank)].push_back({0, 0, file.size_bytes, file.size_bytes + bytes});
    work.targets.targets.push_back(std::move(target));
    file.size_bytes += bytes;
  };
  for (std::size_t i = 0; i < mapping.decompositions.size(); ++i) {
    const Decomposition& one = mapping.decompositions[i];
    Target sum = mapping.targets.targets[one.target];
    sum.dtype = DType::f32;
    const Shape& shape = table[one.magnitude].shape;
    const int rank = static_cast<int>(i % static_cast<std::size_t>(ranks));
    add(std::move(sum), rank);
    add({table[one.magnitude].name, DType::f32, shape, {copy_of(one.magnitude, shape)}, {}}, rank);
  }
  work.plan.layout.files.push_back(file);
  return work;
}

class Factors {
 public:
  Factors(const Session& session, FileCache& files, const Work& work, const Assembler& assembler)
      : session_(session), files_(files), work_(work), assembler_(assembler) {
    const std::uint64_t quarter = files.limits().buffer_bytes / 4;
    buffers_.scratch.resize(std::min<std::uint64_t>(quarter, std::uint64_t{512} << 10));
    sizes_ = {std::min<std::uint64_t>(quarter, std::uint64_t{1} << 20), quarter, buffers_.scratch.size(), quarter};
  }

  std::vector<float> of(std::size_t number, bool of_columns) {
    const Target& sum = work_.targets.targets[2 * number];
    const MatrixShape matrix = matrix_of(sum.shape);
    std::vector<double> squares(of_columns ? matrix.columns : matrix.rows, 0);
    std::uint64_t element = 0;
    read(2 * number, [&](std::span<const float> values) {
      for (const float value : values) {
        squares[of_columns ? element % matrix.columns : element / matrix.columns] += static_cast<double>(value) * value;
        ++element;
      }
    });
    std::vector<float> factors;
    read(2 * number + 1, [&](std::span<const float> values) { factors.insert(factors.end(), values.begin(), values.end()); });
    for (std::size_t i = 0; i < factors.size(); ++i) {
      if (squares[i] == 0) {
        throw Error(ErrorCode::bad_input, printable(sum.name) + ": " + (of_columns ? "column " : "row ") + std::to_string(i) +
                                              " of base and update is all zeros, so that DoRA's factor has no value");
      }
      factors[i] /= static_cast<float>(std::sqrt(squares[i]));
    }
    return factors;
  }

 private:
  template <class Take>
  void read(std::size_t placed_number, const Take& take) {
    const PlacedTarget& placed = work_.plan.layout.placed[placed_number];
    for (std::uint64_t at = placed.position; at < placed.position + placed.size_bytes;) {
      stop_if_signalled(files_.limits());
      const OutputPiece piece = next_piece(assembler_, 0, at, placed.position + placed.size_bytes, sizes_);
      std::vector<float> values((piece.end - piece.begin) / sizeof(float));
      (void)make_piece(files_, piece, std::as_writable_bytes(std::span(values)), buffers_);
      take(std::span<const float>(values));
      at = piece.end;
    }
  }

  const Session& session_;
  FileCache& files_;
  const Work& work_;
  const Assembler& assembler_;
  Buffers buffers_;
  PieceSizes sizes_;
};

void put(Mapping& mapping, std::size_t number, std::vector<float> factors) {
  const Decomposition& one = mapping.decompositions[number];
  Target& target = mapping.targets.targets[one.target];
  Computation computation = *target.computation;
  (one.of_columns ? computation.column_factors : computation.row_factors) = std::move(factors);
  target.computation = std::make_shared<const Computation>(std::move(computation));
}

}  // namespace

void set_factors(const Session& session, FileCache& files, const Source& source, const Catalog& catalog, Mapping& mapping) {
  if (mapping.decompositions.empty()) return;
  Comm& comm = session.comm;
  const Work work = collectively(comm, "adapter", [&] {
    const bool everywhere = std::all_of(source.files.begin(), source.files.end(), [&](const ShardFile& file) {
      return file.nodes.size() >= static_cast<std::size_t>(comm.node_count());
    });
    if (!everywhere) {
      throw Error(ErrorCode::unsupported,
                  "DoRA can be folded only where every node sees all files, because norms of whole tensors are needed; "
                  "copy the checkpoint to a shared file system, or use one node");
    }
    return work_of(mapping, catalog.tensors, comm.size());
  });
  const ChunkTable chunks = send_chunks(comm, catalog, work.targets, work.plan);
  const Assembler assembler(catalog.tensors, work.targets, work.plan, chunks);
  const Bytes mine = collectively(comm, "adapter", [&] {
    WireWriter out;
    Factors factors(session, files, work, assembler);
    for (std::size_t i = static_cast<std::size_t>(comm.rank()); i < mapping.decompositions.size();
         i += static_cast<std::size_t>(comm.size())) {
      out.number(i);
      const Bytes bytes = bytes_of(factors.of(i, mapping.decompositions[i].of_columns));
      out.text({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }
    return out.take();
  });
  for (const Bytes& bytes : comm.gather_all(mine)) {
    for (WireReader in(bytes); !in.at_end();) {
      const std::uint64_t number = in.number();
      const std::string text = in.text();
      std::vector<float> factors(text.size() / sizeof(float));
      std::memcpy(factors.data(), text.data(), factors.size() * sizeof(float));
      put(mapping, number, std::move(factors));
    }
  }
}

}  // namespace unshard
