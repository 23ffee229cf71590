// Keys, copies and eviction of small constants.
#include "api/data_cache.h"

#include "base/hash.h"
#include "base/metrics.h"
#include "base/settings.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <string_view>

namespace torch_lazy {
namespace {

// Larger data is hardly ever equal, and comparing it costs what copying it costs.
constexpr int64_t kSmallBytes = 1024;

at::Tensor upload(const at::Tensor& host, at::Device device) {
  static metrics::Counter& misses = metrics::counter("DeviceDataCacheMiss");
  misses.add();
  c10::InferenceMode normal(false);  // versions are needed
  at::NoGradGuard no_grad;
  return host.to(device, host.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace

size_t DataCache::KeyHash::operator()(const Key& key) const {
  uint64_t hash = mix(0x9216d5d98979fb1bull, static_cast<uint64_t>(key.dtype));
  for (int64_t size : key.sizes) {
    hash = mix(hash, static_cast<uint64_t>(size));
  }
  return mix(hash, std::hash<std::string_view>()(key.bytes));
}

DataCache& DataCache::instance() {
  static auto* instance = new DataCache();  // never destroyed: it holds tensors
  return *instance;
}

DataCache::Cache& DataCache::cache(at::Device device) {
  std::lock_guard<RankedMutex> lock(mutex_);
  auto& cache = caches_[device];
  if (!cache) {
    cache = std::make_unique<Cache>(
        [] { return static_cast<size_t>(settings().data_cache_size.load()); });
  }
  return *cache;
}

at::Tensor DataCache::get(const at::Tensor& host, at::Device device) {
  TORCH_CHECK(host.is_cpu() && host.layout() == at::kStrided && !host.is_quantized(),
              "torch-lazy: data for a device is taken from a plain CPU tensor, but got ",
              host.toString());
  const int64_t nbytes = host.numel() * static_cast<int64_t>(host.element_size());
  if (!settings().data_cache.load() || nbytes > kSmallBytes) {
    return upload(host, device);
  }
  at::Tensor plain = host.detach().resolve_conj().resolve_neg().contiguous();
  Key key{host.scalar_type(), at::DimVector(host.sizes()),
          std::string(static_cast<const char*>(plain.const_data_ptr()), nbytes)};
  Cache& cache = this->cache(device);
  if (std::shared_ptr<Entry> entry = cache.find(key)) {
    if (entry->tensor._version() == entry->version) {
      return entry->tensor;
    }
    cache.erase(key);  // somebody has written to it
  }
  at::Tensor tensor = upload(plain, device);
  auto entry = std::make_shared<Entry>(Entry{tensor, tensor._version()});
  return cache.add(key, std::move(entry))->tensor;
}

size_t DataCache::size(at::Device device) {
  return cache(device).size();
}

void DataCache::clear() {
  std::vector<Cache*> all;
  {
    std::lock_guard<RankedMutex> lock(mutex_);
    for (auto& [device, cache] : caches_) {
      all.push_back(cache.get());
    }
  }
  for (Cache* cache : all) {
    cache->clear();  // not under the lock: freeing a tensor may take the interpreter's
  }
}

}  // namespace torch_lazy
