#include "sim.h"

/* Requests of aggregators. kvb_sync_job of stream/stream.h makes the answers. Which job is served
 * next is random here; the daemon has a queue (kvbridge/sync_queue.c). */

enum { chunk_blocks = 16, busy_ms = 200 };

void sim_bridge_receive_request(
    struct sim_world *world, size_t number, const struct sim_message *ask)
{
    struct sim_bridge *bridge = &world->bridges[number];
    struct sim_job job = { .is_used = true,
                           .aggregator = ask->to_aggregator,
                           .aggregator_life = ask->aggregator_life,
                           .stream_number = ask->stream_number,
                           .token = ask->token };

    if (sim_active(world, SIM_BUSY, (unsigned)number)) {
        const struct kvb_sync_reply reply = { .answer = KVB_SYNC_BUSY,
                                              .worker_id = sim_worker_of(world, job.stream_number),
                                              .dp_rank = sim_rank_of(world, job.stream_number),
                                              .is_last = true,
                                              .retry_ms = busy_ms };
        sim_answer(world, &job, &reply);
        return;
    }
    for (size_t i = 0; i < sim_jobs; i++) {
        if (!bridge->jobs[i].is_used) {
            kvb_sync_job_begin(
                &job.job, world->ranks[job.stream_number].served.stream, &ask->request);
            bridge->jobs[i] = job;
            return;
        }
    }
}

void sim_work_jobs(struct sim_world *world, size_t number)
{
    struct sim_bridge *bridge = &world->bridges[number];
    struct sim_job *job = &bridge->jobs[kvb_random_below(&bridge->rng, sim_jobs)];
    struct kvb_sync_reply reply = { .is_last = true };

    if (!job->is_used) {
        return;
    }
    if (kvb_sync_job_step(
            &job->job, world->ranks[job->stream_number].served.stream, chunk_blocks, &bridge->chunk,
            &reply) != KVB_OK ||
        !bridge->nats.is_connected) {
        job->is_used = false;
        return;
    }
    sim_answer(world, job, &reply);
    job->is_used = !reply.is_last;
    if (reply.is_last) {
        kvb_advertiser_want_beat(
            &world->ranks[job->stream_number].served.advertiser, KVB_BEAT_SOON);
    }
}
