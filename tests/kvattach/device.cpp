// A device of torch without memory, with streams and events: work on them is done when a test says so.

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <mutex>
#include <vector>

namespace {

using Id = c10::StreamId;

struct Point {  // the first entries of a stream
  Id stream;
  long entries;
};

struct Queue {
  std::vector<Point> entries;  // each entry waits until a point is reached; work waits for point 0 of its own stream
  long done = 0;
};

std::mutex mutex;
std::vector<Queue> queues(1);
thread_local Id current = 0;
long host_waits = 0;

bool reached(Point point) { return queues[point.stream].done >= point.entries; }

void finish(Point point) {
  auto& queue = queues[point.stream];
  while (!reached(point)) {
    finish(queue.entries[queue.done]);
    queue.done++;
  }
}

const c10::Device device(c10::DeviceType::PrivateUse1, 0);

c10::Stream stream(Id id) { return c10::Stream(c10::Stream::UNSAFE, device, id); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return device.type(); }
  c10::Device exchangeDevice(c10::Device) const override { return device; }
  c10::Device getDevice() const override { return device; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override { return stream(current); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    auto before = current;
    current = next.id();
    return stream(before);
  }
  c10::Stream getNewStream(c10::Device, int) const override {
    std::lock_guard<std::mutex> held(mutex);
    queues.emplace_back();
    return stream(static_cast<Id>(queues.size()) - 1);
  }
  void record(void** event, const c10::Stream& on, const c10::DeviceIndex, const c10::EventFlag) const override {
    std::lock_guard<std::mutex> held(mutex);
    if (*event == nullptr) *event = new Point;
    *static_cast<Point*>(*event) = {on.id(), static_cast<long>(queues[on.id()].entries.size())};
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Point*>(event); }
  void block(void* event, const c10::Stream& on) const override {
    std::lock_guard<std::mutex> held(mutex);
    queues[on.id()].entries.push_back(*static_cast<Point*>(event));
  }
  bool queryEvent(void* event) const override {
    std::lock_guard<std::mutex> held(mutex);
    return reached(*static_cast<Point*>(event));
  }
  void synchronizeEvent(void* event) const override {
    std::lock_guard<std::mutex> held(mutex);
    host_waits++;
    finish(*static_cast<Point*>(event));
  }
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { return 0; }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace

extern "C" {
void device_queue(long id) { queues[id].entries.push_back({id, 0}); }
void device_finish(long id, long entries) { finish({id, entries}); }
long device_entries(long id) { return static_cast<long>(queues[id].entries.size()); }
long device_done(long id) { return queues[id].done; }
long device_ready(long id) {
  auto& queue = queues[id];
  return queue.done < static_cast<long>(queue.entries.size()) && reached(queue.entries[queue.done]);
}
// How often the host has waited for the device.
long device_host_waits() { return host_waits; }
}
