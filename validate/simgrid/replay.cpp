// Simulates a ring all_reduce, or the transfers of a schedule, in SimGrid on one switch, and prints the predicted time.
//
//   replay ring RANKS CHUNK_BYTES BANDWIDTH LATENCY [SimGrid options]
//   replay schedule FILE BANDWIDTH LATENCY LATENCY_MODEL [SimGrid options]
//
// BANDWIDTH is that of a link in bytes per second in each direction, LATENCY that of a link in seconds. A path has two
// links. FILE has the number of ranks, the number of transfers, and a line for each transfer: source, destination,
// bytes, the previous transfer on its connection (-1: none), the number of transfers it depends on, and these. Transfers
// are numbered from 0 in the order of the file; the previous transfer on a connection comes before.
//
// LATENCY_MODEL:
//   serial      latency is that of SimGrid's links: a message starts its latency when the previous one of its connection
//               has arrived
//   pipelined   latency passes before the transfer, over links without latency: that of a message passes while the
//               previous one transfers its bytes

#include <simgrid/s4u.hpp>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

namespace sg = simgrid::s4u;

// Connects hosts to one switch by a link of two directions each.
static std::vector<sg::Host*> create_switch(int ranks, double bandwidth, double latency)
{
  auto* zone = sg::create_star_zone("switch");
  std::vector<sg::Host*> hosts;
  for (int rank = 0; rank < ranks; rank++) {
    const auto name = "gpu" + std::to_string(rank);
    auto* host = zone->create_host(name, 1e9);
    auto* link = zone->create_split_duplex_link(name + "_link", bandwidth);
    link->set_latency(latency);
    link->seal();
    host->seal();
    zone->add_route(host->get_netpoint(), nullptr, nullptr, nullptr, {{link, sg::LinkInRoute::Direction::UP}}, true);
    hosts.push_back(host);
  }
  zone->seal();
  return hosts;
}

// Sends a chunk to the next rank and receives one from the previous rank, 2(n-1) times. Both are complete before the next
// step.
static void run_ring_rank(int rank, int ranks, double bytes)
{
  auto* from_previous = sg::Mailbox::by_name(std::to_string(rank));
  auto* to_next = sg::Mailbox::by_name(std::to_string((rank + 1) % ranks));
  static int chunk;
  for (int step = 0; step < 2 * (ranks - 1); step++) {
    int* received = nullptr;
    auto send = to_next->put_async(&chunk, bytes);
    auto receive = from_previous->get_async<int>(&received);
    receive->wait();
    send->wait();
  }
}

static unsigned long create_ring(const std::vector<sg::Host*>& hosts, double bytes)
{
  const int ranks = static_cast<int>(hosts.size());
  for (int rank = 0; rank < ranks; rank++)
    sg::Actor::create("rank" + std::to_string(rank), hosts[rank], run_ring_rank, rank, ranks, bytes);
  return 2UL * (ranks - 1) * ranks;
}

struct Transfer {
  int source;
  int destination;
  double bytes;
  // Previous transfer of the same connection.
  long previous;
  // Transfers that depend on this one, without the next of its connection.
  std::vector<long> dependents;
  // Number of transfers that this one still depends on, and the time at which the last of them ended.
  long remaining = 0;
  double ready = 0;
  // Connection that has this transfer.
  size_t connection = 0;
};

// Transfers of one connection, in their order, and the actor's position.
struct Connection {
  std::vector<long> transfers;
  sg::SemaphorePtr wake = sg::Semaphore::create(0);
  // Transfer for whose dependencies the actor waits; -1: none.
  long awaited = -1;
};

struct Schedule {
  std::vector<sg::Host*> hosts;
  std::vector<Transfer> transfers;
  std::vector<Connection> connections;
  // Latency of a path that passes before a transfer; 0 where the links have it.
  double latency = 0;
  unsigned long finished = 0;
};

static void read_transfers(std::ifstream& file, unsigned long count, Schedule& schedule)
{
  auto& transfers = schedule.transfers;
  transfers.resize(count);
  for (size_t number = 0; number < count; number++) {
    auto& transfer = transfers[number];
    size_t dependencies = 0;
    file >> transfer.source >> transfer.destination >> transfer.bytes >> transfer.previous >> dependencies;
    for (size_t i = 0; i < dependencies; i++) {
      long dependency = 0;
      file >> dependency;
      // The actor of a connection sends its transfers in order anyhow.
      if (dependency != transfer.previous) {
        transfers.at(dependency).dependents.push_back(number);
        transfer.remaining++;
      }
    }
    if (transfer.previous < 0) {
      transfer.connection = schedule.connections.size();
      schedule.connections.emplace_back();
    } else {
      transfer.connection = transfers.at(transfer.previous).connection;
    }
    schedule.connections[transfer.connection].transfers.push_back(number);
  }
  if (!file)
    throw std::runtime_error("a line of the transfers is missing or wrong");
}

// Sends the transfers of a connection one after the other, each when its dependencies have ended.
static void run_connection(Schedule* schedule, size_t index)
{
  auto& connection = schedule->connections[index];
  for (const long number : connection.transfers) {
    auto& transfer = schedule->transfers[number];
    if (transfer.remaining > 0) {
      connection.awaited = number;
      connection.wake->acquire();
      connection.awaited = -1;
    }
    if (schedule->latency > 0)
      sg::this_actor::sleep_until(transfer.ready + schedule->latency);
    sg::Comm::sendto(schedule->hosts[transfer.source], schedule->hosts[transfer.destination],
                     static_cast<uint64_t>(transfer.bytes));
    schedule->finished++;
    for (const long dependent : transfer.dependents) {
      auto& other = schedule->transfers[dependent];
      other.ready = sg::Engine::get_clock();
      auto& its_connection = schedule->connections[other.connection];
      if (--other.remaining == 0 && its_connection.awaited == dependent)
        its_connection.wake->release();
    }
  }
}

static void create_schedule(Schedule& schedule)
{
  for (size_t index = 0; index < schedule.connections.size(); index++) {
    const auto source = schedule.transfers[schedule.connections[index].transfers.front()].source;
    sg::Actor::create("connection" + std::to_string(index), schedule.hosts[source], run_connection, &schedule, index);
  }
}

int main(int argc, char** argv)
{
  sg::Engine engine(&argc, argv);
  const std::string mode = argc > 1 ? argv[1] : "";
  Schedule schedule;
  unsigned long transfers = 0;
  if (mode == "ring" && argc == 6) {
    const auto hosts = create_switch(std::stoi(argv[2]), std::stod(argv[4]), std::stod(argv[5]));
    transfers = create_ring(hosts, std::stod(argv[3]));
  } else if (mode == "schedule" && argc == 6) {
    const std::string model = argv[5];
    if (model != "serial" && model != "pipelined") {
      std::fprintf(stderr, "expected serial or pipelined, found %s\n", argv[5]);
      return 2;
    }
    const double latency = std::stod(argv[4]);
    const bool pipelined = model == "pipelined";
    std::ifstream file(argv[2]);
    int ranks = 0;
    file >> ranks >> transfers;
    schedule.hosts = create_switch(ranks, std::stod(argv[3]), pipelined ? 0 : latency);
    schedule.latency = pipelined ? 2 * latency : 0;
    read_transfers(file, transfers, schedule);
    create_schedule(schedule);
  } else {
    std::fprintf(stderr, "usage: replay ring RANKS CHUNK_BYTES BANDWIDTH LATENCY\n"
                         "       replay schedule FILE BANDWIDTH LATENCY serial|pipelined\n");
    return 2;
  }
  engine.run();
  if (schedule.finished != schedule.transfers.size()) {
    std::fprintf(stderr, "%lu of %lu transfers ended\n", schedule.finished, schedule.transfers.size());
    return 1;
  }
  std::printf("{\"time_us\": %.9f, \"transfers\": %lu}\n", sg::Engine::get_clock() * 1e6, transfers);
  return 0;
}
