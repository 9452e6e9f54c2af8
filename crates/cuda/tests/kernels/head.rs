//! The average over the pixels, and small heads.

use super::*;

#[test]
#[ignore = "needs a GPU"]
fn the_fused_pool_is_an_average() {
    gpu();
    tch::manual_seed(11);
    for kind in [Kind::Float, Kind::BFloat16] {
        for (batch, clients, channels, height, width) in
            [(20, 10, 128, 8, 8), (1, 1, 8, 1, 1), (3, 2, 24, 5, 7), (7, 1, 512, 4, 4)]
        {
            let what = format!("{kind:?}, {batch} x {clients} x {channels} x {height} x {width}");
            let x = noise(&[batch, clients * channels, height, width]).to_kind(kind);
            let gradient = noise(&[clients, batch, channels]);
            let run = |x: Tensor, pool: &dyn Fn(&Tensor) -> Tensor| {
                let x = x.detach().set_requires_grad(true);
                let y = pool(&x);
                let total = (&y * &gradient).sum(Kind::Float);
                (y.detach(), Tensor::run_backward(&[total], &[&x], false, false).remove(0))
            };
            let plain = |x: &Tensor| {
                let mean = x.mean_dim(&[2i64, 3][..], false, Kind::Float);
                mean.view([batch, clients, channels]).transpose(0, 1)
            };
            let expected = run(x.shallow_clone(), &plain);
            for x in [channels_last(&x), x.contiguous()] {
                let found = run(x, &|x| pool(x, clients).unwrap());
                assert_close(&found.0, &expected.0, 1e-6, &format!("{what}: pool"));
                let tolerance = if kind == Kind::Float { 1e-6 } else { 1e-2 };
                assert_close(&found.1, &expected.1, tolerance, &format!("{what}: gradient"));
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn the_fused_head_is_a_product() {
    gpu();
    tch::manual_seed(12);
    for (clients, batch, inputs, outputs) in
        [(10, 20, 128, 10), (3, 20, 512, 10), (1, 1, 1, 1), (2, 7, 33, 64), (1, 128, 100, 64)]
    {
        let what = format!("{clients} x {batch} x {inputs} x {outputs}");
        assert!(is_small_head(batch, outputs));
        let leaf = |size: &[i64]| noise(size).set_requires_grad(true);
        let x = leaf(&[clients, batch, inputs]);
        let (weight, bias) = (leaf(&[clients, outputs, inputs]), leaf(&[clients, outputs]));
        let gradient = noise(&[clients, batch, outputs]);
        let run = |y: Tensor| {
            let total = (&y * &gradient).sum(Kind::Float);
            let mut found = vec![y.detach()];
            found.extend(Tensor::run_backward(&[total], &[&x, &weight, &bias], false, false));
            found
        };
        let found = run(head(&x, &weight, &bias).unwrap());
        let plain = run(x.matmul(&weight.transpose(1, 2)) + bias.unsqueeze(1));
        let names = ["y", "gradient of x", "gradient of weight", "gradient of bias"];
        for ((found, plain), name) in found.iter().zip(&plain).zip(names) {
            assert_close(found, plain, 1e-5, &format!("{what}: {name}"));
        }
        assert_eq!(found[2].stride(), weight.stride(), "{what}"); // or the step would copy it
        // Without a gradient of the input.
        let total = (head(&x.detach(), &weight, &bias).unwrap() * &gradient).sum(Kind::Float);
        let alone = Tensor::run_backward(&[total], &[&weight], false, false).remove(0);
        assert_eq!(alone, found[2], "{what}");
    }
    assert!(!is_small_head(128, 65) && !is_small_head(129, 64));
}
