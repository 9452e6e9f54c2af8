
// The losses L_fix and L_mix of a cohort, with their gradients.

struct Loss {
    const float* logits;      // [K, views * batch, classes]
    const float* adjustment;  // [K, classes], added to the logits; null: none
    const i64* labels;        // [K, batch]
    const float* weights;     // [K, batch]; null: 1 each
    const i64* mix_labels;    // the second labels of the second view
    const float* mix_weights;
    const float* lambda;      // [K, batch]: share of the first label in the second view
    float* terms;             // [K, views]: means over the batch
    float* total;             // [K]: the first plus `mix_weight` of the second
    float* gradient;          // [K, views * batch, classes]: of the total
    int batch, views, classes;
    float mix_weight;
};

// One block per client, one warp per row. A label that is no class counts for nothing.
extern "C" __global__ void __launch_bounds__(256) fix_mix_loss(const __grid_constant__ Loss l) {
    __shared__ float sums[2][8];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    i64 client = blockIdx.x;
    const float* adjustment = l.adjustment ? l.adjustment + client * l.classes : 0;
    float fix = 0.f, mix = 0.f; // the terms
    for (int row = warp; row < l.views * l.batch; row += 8) {
        int view = row / l.batch;
        i64 sample = client * l.batch + row % l.batch, at = (client * l.views * l.batch + row) * l.classes;
        auto logit = [&](int c) { return l.logits[at + c] + (adjustment ? adjustment[c] : 0.f); };
        i64 label = l.labels[sample], other = view ? l.mix_labels[sample] : -1;
        float share = l.weights ? l.weights[sample] : 1.f, rest = 0.f;
        if (view) {
            float lambda = l.lambda[sample];
            share *= lambda;
            rest = (1.f - lambda) * (l.mix_weights ? l.mix_weights[sample] : 1.f);
        }
        if (label < 0 || label >= l.classes) share = 0.f;
        if (other < 0 || other >= l.classes) rest = 0.f;
        float most = __int_as_float(0xff800000), sum = 0.f, loss = 0.f;
        for (int c = lane; c < l.classes; c += 32) most = fmaxf(most, logit(c));
        most = warp_max(most);
        for (int c = lane; c < l.classes; c += 32) sum += expf(logit(c) - most);
        sum = warp_sum(sum);
        float log_sum = most + logf(sum);
        for (int c = lane; c < l.classes; c += 32) {
            float minus = log_sum - logit(c), weight = (c == label ? share : 0.f) + (c == other ? rest : 0.f);
            if (weight != 0.f) loss += weight * minus;
            l.gradient[at + c] = ((share + rest) * expf(-minus) - weight) / l.batch * (view ? l.mix_weight : 1.f);
        }
        (view ? mix : fix) += warp_sum(loss);
    }
    if (lane < 2) sums[lane][warp] = lane ? mix : fix;
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0.f;
        for (int view = 0; view < l.views; view++) {
            float sum = 0.f;
            #pragma unroll
            for (int w = 0; w < 8; w++) sum += sums[view][w];
            l.terms[client * l.views + view] = sum / l.batch;
            total += sum / l.batch * (view ? l.mix_weight : 1.f);
        }
        l.total[client] = total;
    }
}
