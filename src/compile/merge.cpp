// Two pieces into one: finds how the dimensions of one correspond to those of the other.
#include "compile/piece.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace torch_lazy::compile {
namespace {

/// A dimension of an access that moves through memory.
struct Step {
  int64_t stride;
  int dim;
};

std::vector<Step> steps_of(const Access& access, bool moving) {
  std::vector<Step> steps;
  for (int k = 0; k < static_cast<int>(access.strides.size()); ++k) {
    if ((access.strides[k] != 0) == moving) {
      steps.push_back({access.strides[k], k});
    }
  }
  if (moving) {
    std::stable_sort(steps.begin(), steps.end(),
                     [](const Step& a, const Step& b) { return a.stride > b.stride; });
  }
  return steps;
}

/// Makes two lists of dimensions equal in sizes by splitting; from the last to the first. Returns
/// pairs (dimension of a, dimension of b), or nothing. Numbers of dimensions change as they split.
bool refine(Piece& a, Piece& b, std::vector<int> in_a, std::vector<int> in_b,
            std::vector<std::pair<int, int>>& pairs) {
  auto split_at = [&](Piece& piece, std::vector<int>& rest, bool first, int64_t inner) {
    const int dim = rest.back();
    split(piece, dim, inner);
    auto shift = [&](int& d) { d += d > dim ? 1 : 0; };
    std::for_each(in_a.begin(), in_a.end(), [&](int& d) {
      if (first) {
        shift(d);
      }
    });
    std::for_each(in_b.begin(), in_b.end(), [&](int& d) {
      if (!first) {
        shift(d);
      }
    });
    for (auto& pair : pairs) {
      shift(first ? pair.first : pair.second);
    }
    rest.push_back(dim + 1);  // the low part comes first
  };
  while (!in_a.empty() && !in_b.empty()) {
    const int64_t size_a = a.sizes[in_a.back()];
    const int64_t size_b = b.sizes[in_b.back()];
    if (size_a > size_b) {
      if (size_a % size_b != 0) {
        return false;
      }
      split_at(a, in_a, true, size_b);
    } else if (size_b > size_a) {
      if (size_b % size_a != 0) {
        return false;
      }
      split_at(b, in_b, false, size_a);
    }
    pairs.emplace_back(in_a.back(), in_b.back());
    in_a.pop_back();
    in_b.pop_back();
  }
  return in_a.empty() && in_b.empty();
}

std::vector<int> dims(const std::vector<Step>& steps) {
  std::vector<int> result;
  for (const Step& step : steps) {
    result.push_back(step.dim);
  }
  return result;
}

/// Whether the pairs move equally through memory, and to the same places.
bool same_addresses(const Access& a, const Access& b,
                    const std::vector<std::pair<int, int>>& pairs) {
  return std::all_of(pairs.begin(), pairs.end(), [&](const std::pair<int, int>& pair) {
    return a.strides[pair.first] == b.strides[pair.second];
  });
}

/// Whether the elements of a row come in the same order when dimensions are rearranged.
bool keeps_order(const Piece& piece, const std::vector<int>& order) {
  int last = -1;
  for (int dim : order) {
    if (dim >= piece.outer) {
      if (dim < last) {
        return false;
      }
      last = dim;
    }
  }
  return true;
}

/// Brings both pieces into one space. `a_access` and `b_access` say what corresponds.
bool align(Piece& a, Piece& b, size_t a_access, size_t b_access) {
  const Access& in_a = a.accesses[a_access];
  const Access& in_b = b.accesses[b_access];
  if (in_a.offset != in_b.offset || in_a.type != in_b.type || !in_a.lookups.empty() ||
      !in_b.lookups.empty() || in_a.mask >= 0 || in_b.mask >= 0) {
    return false;
  }
  std::vector<int> still_a = dims(steps_of(in_a, false));
  std::vector<int> still_b = dims(steps_of(in_b, false));
  const size_t still_before_a = still_a.size();
  std::vector<std::pair<int, int>> pairs;
  if (!refine(a, b, dims(steps_of(in_a, true)), dims(steps_of(in_b, true)), pairs) ||
      !same_addresses(a.accesses[a_access], b.accesses[b_access], pairs)) {
    return false;
  }
  still_a = dims(steps_of(a.accesses[a_access], false));
  still_b = dims(steps_of(b.accesses[b_access], false));
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(still_a.size() == still_before_a);
  (void)still_before_a;
  bool row_of_a = false;  // b's whole space is the rows of a
  bool row_of_b = false;
  if (!still_a.empty() && !still_b.empty()) {
    if (!refine(a, b, still_a, still_b, pairs)) {
      return false;
    }
  } else if (!still_a.empty()) {
    row_of_a = true;
  } else if (!still_b.empty()) {
    row_of_b = true;
  }
  // What nothing in the other piece corresponds to must be a row's elements.
  auto all_inner = [](const Piece& piece, const std::vector<int>& list) {
    return std::all_of(list.begin(), list.end(), [&](int d) { return d >= piece.outer; }) &&
           static_cast<int>(list.size()) == piece.inner();
  };
  if ((row_of_a && (!all_inner(a, still_a) || b.reduces())) ||
      (row_of_b && (!all_inner(b, still_b) || a.reduces()))) {
    return false;
  }
  const bool both = a.reduces() && b.reduces();
  // The common space: a's dimensions in their order (b's, if the rows are b's), outer ones first.
  const bool by_b = row_of_b || (b.reduces() && !a.reduces());
  const Piece& leader = by_b ? b : a;
  std::vector<int> other(leader.sizes.size(), -1);
  for (auto [x, y] : pairs) {
    const bool outer_a = x < a.outer;
    const bool outer_b = y < b.outer;
    if (both && outer_a != outer_b) {
      return false;
    }
    (by_b ? other[y] : other[x]) = by_b ? x : y;
  }
  const Sizes sizes = leader.sizes;
  const int outer = leader.outer;
  Piece& follower = by_b ? a : b;
  if (has_order(follower) && !keeps_order(follower, other)) {
    return false;
  }
  rearrange(follower, sizes, other, outer);
  return true;
}

/// Appends b's terms to a's; b's loads of what a stored become the stored terms.
std::optional<Piece> join(Piece a, const Piece& b) {
  std::vector<int32_t> moved(b.terms.size(), -1);
  auto stored_in_a = [&](uint32_t slot) {
    for (size_t i = a.terms.size(); i-- > 0;) {
      if (a.terms[i].op == Opcode::store && a.accesses[a.terms[i].place].slot == slot) {
        return static_cast<int32_t>(i);
      }
    }
    return -1;
  };
  for (size_t i = 0; i < b.terms.size(); ++i) {
    Term term = b.terms[i];
    for (int32_t& operand : term.operands) {
      operand = operand >= 0 ? moved[operand] : -1;
    }
    if (has_access(term.op)) {
      Access access = b.accesses[term.place];
      if (term.op == Opcode::load) {
        const int32_t store = stored_in_a(access.slot);
        if (store >= 0) {
          if (!a.accesses[a.terms[store].place].same_place(access)) {
            return std::nullopt;
          }
          moved[i] = a.terms[store].operands[0];
          continue;
        }
      }
      for (Lookup& lookup : access.lookups) {
        lookup.term = moved[lookup.term];
      }
      access.mask = access.mask >= 0 ? moved[access.mask] : -1;
      term.place = static_cast<int32_t>(a.accesses.size());
      a.accesses.push_back(std::move(access));
    } else if (term.op == Opcode::argument) {
      a.scalars.push_back(b.scalars[term.place]);
      term.place = static_cast<int32_t>(a.scalars.size() - 1);
    }
    moved[i] = static_cast<int32_t>(a.terms.size());
    a.terms.push_back(term);
  }
  for (uint32_t node : b.nodes) {
    if (std::find(a.nodes.begin(), a.nodes.end(), node) == a.nodes.end()) {
      a.nodes.push_back(node);
    }
  }
  return a;
}

}  // namespace

namespace {

/// What can be seen before anything is copied.
bool may_align(const Piece& first, const Access& a, const Piece& second, const Access& b) {
  if (a.slot != b.slot || a.offset != b.offset || a.type != b.type || !a.lookups.empty() ||
      !b.lookups.empty() || a.mask >= 0 || b.mask >= 0) {
    return false;
  }
  return elements_touched(first, a) == elements_touched(second, b);
}

/// Whether the second reads what the first adds to: that is complete only after its last row.
bool reads_sums(const Piece& first, const Piece& second) {
  return std::any_of(first.terms.begin(), first.terms.end(), [&](const Term& term) {
    return term.op == Opcode::accumulate &&
           std::any_of(second.terms.begin(), second.terms.end(), [&](const Term& other) {
             return other.op == Opcode::load &&
                    second.accesses[other.place].slot == first.accesses[term.place].slot;
           });
  });
}

}  // namespace

std::optional<Piece> merge(const Piece& first, const Piece& second) {
  if (reads_sums(first, second)) {
    return std::nullopt;
  }
  // What the second reads of the first; else a place that both read.
  for (bool dependent : {true, false}) {
    for (size_t j = 0; j < second.terms.size(); ++j) {
      if (second.terms[j].op != Opcode::load) {
        continue;
      }
      const size_t b_access = static_cast<size_t>(second.terms[j].place);
      for (size_t i = 0; i < first.terms.size(); ++i) {
        const Opcode op = first.terms[i].op;
        if (op != (dependent ? Opcode::store : Opcode::load)) {
          continue;
        }
        const size_t a_access = static_cast<size_t>(first.terms[i].place);
        if (first.accesses[a_access].slot != second.accesses[b_access].slot) {
          continue;
        }
        if (!may_align(first, first.accesses[a_access], second, second.accesses[b_access])) {
          if (dependent) {
            return std::nullopt;
          }
          continue;
        }
        Piece a = first;
        Piece b = second;
        if (align(a, b, a_access, b_access)) {
          if (std::optional<Piece> joined = join(std::move(a), b)) {
            return joined;
          }
        }
        if (dependent) {
          return std::nullopt;
        }
      }
    }
  }
  return std::nullopt;
}

}  // namespace torch_lazy::compile
