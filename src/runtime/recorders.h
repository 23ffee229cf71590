// Which thread recorded which node: whose an error is.
#pragma once

#include "ir/node.h"

#include <thread>

namespace torch_lazy {

/// This thread has recorded the program's last node. Needs the graph lock.
void note_recorder(const Program& program);

/// The thread that recorded a node; nobody where that is too long ago. Needs the graph lock.
std::thread::id recorder_of(const Node& node);

}  // namespace torch_lazy
