"""Statements of random programs, as text with holes. A statement that does not fit the tensors that are there raises
when it is tried, and another is drawn.

Holes: `{new}` a fresh name; `{x}` a tensor (`{f}` of floats, `{i}` of integers, `{b}` of bools), `{y}`, `{z}` others
that preferably fit it; `{d}` a dimension of the first one, `{e}` another; `{k}` a small number, `{c}` a constant;
`{size}` its number of columns; `{shape}` its sizes, turned round; `{mode}`, `{inner}` regions with gradients
or without.
"""

from __future__ import annotations

VIEWS = [
    "{new} = {x}[0]", "{new} = {x}[-1]", "{new} = {x}[1:]", "{new} = {x}[..., 0]", "{new} = {x}[..., ::2]",
    "{new} = {x}[:, 1]", "{new} = {x}[:, :2]", "{new} = {x}[None]", "{new} = {x}[0:1, ..., -1]",
    "{new} = {x}.select({d}, 0)", "{new} = {x}.narrow({d}, 1, 1)", "{new} = {x}.transpose({d}, {e})", "{new} = {x}.mT",
    "{new} = {x}.permute(*reversed(range({x}.dim())))", "{new} = {x}.t()", "{new} = {x}.movedim({d}, {e})",
    "{new} = {x}.view(-1)", "{new} = {x}.reshape(-1)", "{new} = {x}.view({x}.shape)", "{new} = {x}.reshape({shape})",
    "{new} = {x}.flatten({d})", "{new} = {x}.unflatten({d}, (-1, 2))", "{new} = {x}.unsqueeze({d})",
    "{new} = {x}.squeeze()", "{new} = {x}.squeeze({d})", "{new} = {x}.expand(2, *{x}.shape)",
    "{new} = {x}.expand_as({y})", "{new} = {x}.diagonal()", "{new} = {x}.diagonal(1, {d}, {e})",
    "{new} = {x}.unfold({d}, 2, 1)", "{new} = {x}.unfold({d}, 2, 2)", "{new} = {x}.split(2, {d})[0]",
    "{new} = {x}.split([1, {size} - 1], -1)[1]", "{new}, {new}x = {x}.chunk(2, {d})", "{new} = {x}.unbind({d})[-1]",
    "{new} = {x}.detach()", "{new} = {x}.view_as({y})", "{new} = {x}.contiguous()", "{new} = torch.flatten({x})",
    "{new} = torch.as_strided({x}, (2, 2), (1, 1))", "{new} = torch.real({x})", "{new} = {x}.swapaxes({d}, {e})",
    "{new} = {x}.tensor_split(2, {d})[1]", "{new} = torch.ravel({x})", "{new} = {x}.conj()", "{new} = {x}.imag",
    "{new} = {x}.view({x}.shape[0], -1)", "{new} = torch.atleast_2d({x})", "{new} = torch.broadcast_to({x}, {y}.shape)",
]
WRITES = [
    "{x}.add_({y})", "{x}.mul_({y})", "{x}.sub_({y}, alpha=2)", "{x}.copy_({y})", "{x}.fill_({c})", "{x}.zero_()",
    "{f}.relu_()", "{x}.clamp_(-1, 1)", "{x}.clamp_(min=0)", "{x}.neg_()", "{f}.sigmoid_()", "{f}.tanh_()",
    "{f}.masked_fill_({y} > 0, {c})", "{x}.masked_fill_({b}, {k})", "{x} += {y}", "{x} *= {c}", "{x} -= 1",
    "{f} /= 2", "{x}[0] = {y}", "{x}[0] = {k}", "{x}[1:] = {y}", "{x}[..., 0] = {c}", "{x}[..., -1] = {y}",
    "{x}[:, ::2] = {k}", "{x}[{y} > 0] = {k}", "{x}[{b}] = {k}", "{x}[torch.tensor([1, 0])] = {y}", "{x}[0] += {y}",
    "{x}[:, 1] *= 2", "{x}[{i}.abs() % {x}.shape[0]] = {c}", "{x}.index_put_((torch.tensor([0]),), {y})",
    "{x}.index_fill_({d}, torch.tensor([0]), {c})", "{x}.index_add_({d}, torch.tensor([0, 1]), {y})",
    "{x}.index_copy_(0, torch.tensor([1]), {y}[:1])", "{f}.lerp_({y}, 0.25)", "{f}.addcmul_({y}, {z}, value=0.5)",
    "{x}.scatter_(-1, torch.zeros_like({x}, dtype=torch.int64)[..., :1], {k})", "{f}.exp_()", "{f}.abs_()",
    "{x}.scatter_add_(-1, torch.zeros_like({x}, dtype=torch.int64), {y})", "{f}.addmm_({y}.clone(), {z}.clone())",
    "F.relu({f}, inplace=True)", "F.leaky_relu({f}, 0.1, inplace=True)", "F.hardtanh({f}, inplace=True)",
    "torch.add({x}, {y}, out={z})", "torch.mul({f}, 2, out={z})", "{new} = {x}.add_(1)", "{new} = {f}.relu_()",
    "{x}.view(-1).add_(1)", "{x}.view(-1)[0] = {k}", "{x}.t().mul_(2)", "{x}.diagonal().fill_({k})",
    "{x}.transpose({d}, {e})[0].add_({y})", "{f}.clamp_max_({c})", "{x}.triu_()", "{x}.unsqueeze_(0)", "{x}.t_()",
    "{i}.bitwise_and_(3)", "{b}.logical_not_()", "{x}.select({d}, 0).copy_({y})", "{x}.squeeze_()", "{x}.eq_({y})",
    "{x}.put_(torch.tensor([0, 2]), {y}.reshape(-1)[:2])", "{x}.fill_diagonal_({k})", "{f}.sqrt_()", "{f}.floor_()",
    "{x}.cumsum_({d})", "{x}.index_reduce_({d}, torch.tensor([0]), {y}, 'amax')", "{x}.resize_as_({x})",
    "torch._foreach_add_([{x}, {y}], 1)", "{x}.set_({y})", "{x}.data.add_(1)", "{x}.__setitem__(0, {k})",
]
POINTWISE = [
    "{new} = {x} + {y}", "{new} = {x} * {y}", "{new} = {x} - {y}", "{new} = {x} * {c}", "{new} = {k} - {x}",
    "{new} = {f} / ({y}.abs() + 1)", "{new} = -{x}", "{new} = {f}.sin()", "{new} = torch.relu({f})",
    "{new} = F.gelu({f})", "{new} = F.gelu({f}, approximate='tanh')", "{new} = F.silu({f})", "{new} = {f}.sigmoid()",
    "{new} = torch.tanh({f})", "{new} = torch.exp({f}.clamp(max=2))", "{new} = torch.where({x} > {y}, {x}, {y})",
    "{new} = torch.where({b}, {x}, {k})", "{new} = torch.maximum({x}, {y})", "{new} = {x} > {y}", "{new} = {x} == {y}",
    "{new} = {x}.to(torch.float64)", "{new} = {x}.to(torch.bfloat16)", "{new} = {x}.float()", "{new} = {x}.half()",
    "{new} = {f}.nan_to_num(0, 3, -3).clamp(-9, 9).to(torch.int64)", "{new} = {i} // 3", "{new} = {i} % 3",
    "{new} = {b} & {y}", "{new} = ~{b}", "{new} = {i} ^ {y}", "{new} = {x}.clone()", "{new} = {x}.abs()",
    "{new} = {f}.abs().sqrt()", "{new} = ({f}.abs() + 1).log()", "{new} = torch.clamp({x}, -1, {c})",
    "{new} = {x}.sign()",
    "{new} = F.leaky_relu({f})", "{new} = F.elu({f})", "{new} = F.softplus({f})", "{new} = F.hardswish({f})",
    "{new} = torch.atan2({f}, {y} + 3)", "{new} = {f}.round()", "{new} = {f}.floor()", "{new} = {x} ** 2",
    "{new} = torch.zeros_like({x})", "{new} = torch.ones({shape}) + {x}.sum()", "{new} = {x}.new_zeros({x}.shape)",
    "{new} = torch.full({x}.shape, {c})", "{new} = torch.arange({x}.shape[0])", "{new} = torch.erf({f})",
    "{new} = torch.lerp({f}, {y}, 0.3)", "{new} = {f}.isnan()", "{new} = torch.isinf({f})", "{new} = {x}.to({y}.dtype)",
    "{new} = torch.addcmul({f}, {y}, {z})", "{new} = torch.polar({f}.abs(), {f})", "{new} = torch.complex({f}, {f})",
    "{new} = {x} * {x}.shape[0]", "{new} = {x} * {x}.shape[0] ** -0.5", "{new} = torch.tensor({c})",
    "{new} = torch.copysign({f}, {y})", "{new} = torch.fmod({f}, 2)", "{new} = torch.remainder({x}, 3)",
    "{new} = F.dropout({f}, 0.5, training=False)", "{new} = torch.heaviside({f}, {y})", "{new} = {x}.type_as({y})",
]
OTHERS = [
    "{new} = {x}.sum()", "{new} = {x}.sum({d})", "{new} = {f}.mean({d}, keepdim=True)", "{new} = {x}.amax({d})",
    "{new} = {x}.max({d})[0]", "{new}, {new}i = {f}.min({d})", "{new} = {f}.var({d})", "{new} = {f}.std()",
    "{new} = {x}.argmax({d})", "{new} = {x}.prod({d})", "{new} = {b}.any()", "{new} = ({x} > 0).all({d})",
    "{new} = {f}.norm()", "{new} = torch.logsumexp({f}, {d})", "{new} = {f} @ {y}", "{new} = {f} @ {f}.mT",
    "{new} = torch.mm({f}, {f}.t())", "{new} = {f}.mT @ {y}", "{new} = torch.bmm({f}, {f}.transpose(1, 2))",
    "{new} = torch.einsum('ij,kj->ik', {f}, {y})", "{new} = torch.outer({f}, {y})", "{new} = torch.dot({f}, {y})",
    "{new} = F.softmax({f}, {d})", "{new} = F.log_softmax({f}, {d})", "{new} = F.layer_norm({f}, ({size},))",
    "{new} = F.scaled_dot_product_attention({f}, {f}, {y})", "{new} = F.normalize({f}, dim={d})",
    "{new} = F.scaled_dot_product_attention(*3 * [{f}.nan_to_num(0, 4, -4)[None]], is_causal=True)",
    "{new} = F.max_pool2d({f}, 2)", "{new} = F.avg_pool2d({f}, 2)", "{new} = F.adaptive_avg_pool2d({f}, 1)",
    "{new} = F.max_pool1d({f}, 2)", "{new} = F.pad({f}, (1, 1))", "{new} = F.interpolate({f}[None], scale_factor=2)",
    "{new} = F.embedding({i}.abs() % 3, {y})", "{new} = F.one_hot({i}.abs() % 3, 3)", "{new} = torch.cumsum({x}, {d})",
    "{new} = torch.cat([{x}, {y}], {d})", "{new} = torch.stack([{x}, {y}], {d})", "{new} = {x}.flip({d})",
    "{new} = {x}.roll(1, {d})", "{new} = {x}.repeat(2, *([1] * {x}.dim()))", "{new} = {x}.tril()",
    "{new}, {new}i = torch.sort({f}, {d})", "{new} = {f}.argsort({d})", "{new}, {new}i = torch.topk({f}, 2, {d})",
    "{new} = torch.gather({x}, -1, {i}.abs() % {size})", "{new} = {x}.index_select({d}, torch.tensor([1, 0]))",
    "{new} = {x}[{i}.abs() % {x}.shape[0]]", "{new} = {x}[torch.tensor([0, 1, 1])]",
    "{new} = {x}[:, torch.tensor([1])]",
    "{new} = {x}.scatter(-1, torch.zeros_like({x}, dtype=torch.int64)[..., :1], {y})",
    "{new} = {x}.masked_fill({b}, {k})",
    "{new} = {x}.take(torch.tensor([0, 1]))", "{new} = torch.meshgrid({x}, {y}, indexing='ij')[0]",
    "{new} = F.mse_loss({f}, {y})", "{new} = F.cross_entropy({f}, torch.zeros({f}.shape[0], dtype=torch.int64))",
    "{new} = F.conv1d({f}[None], {f}[:, None])", "{new} = {x}.cummax({d})[0]", "{new} = torch.tril_indices(3, 3)",
    "{new} = {x}.diff(dim={d})", "{new} = {f}.median({d})[0]", "{new} = torch.linspace(0, 1, {k} + 2)",
    # kron keeps its arguments without their versions: once they are written, PyTorch's own gradient is another.
    "{new} = {x}.repeat_interleave(2, {d})", "{new} = torch.kron({x}.clone(), {y}.clone())",
    "{new} = {x}.select_scatter({y}, {d}, 0)",
    "{new} = {x}.slice_scatter({y}, {d}, 0, 1)", "{new} = torch.diag_embed({x})", "{new} = {f}.cumprod({d})",
]
CONTROL = [
    "{new} = cond({f}.sum() > {c}, lambda a: a.sin(), lambda a: a * 2, ({f},))",
    "{new} = cond({f}.sum() > {c}, lambda a, b: a + b, lambda a, b: a.relu() - b, ({f}, {y}))",
    "{new} = cond({x}.shape[0] > 4, lambda a: a + 1, lambda a: a - 1, ({x},))",
    "{new} = cond({f}.mean() > 0, lambda a: a + self.b0, lambda a: F.softmax(a, -1) * self.b0, ({f},))",
    "{new} = repeated({k}, lambda a: torch.tanh(a) * 0.5, {f})",
    "{new} = repeated(3, lambda a: F.gelu(a), {f})",
    "{new} = scanned(lambda a, b: a * 0.5 + b, torch.zeros_like({f}[0]), {f})",
    "{new} = scanned(lambda a, b: torch.tanh(a + b), {f}[0] * 0, {f})",
    "{new} = mapped(lambda a: F.softmax(a, -1), {f})",
    "{new} = mapped(lambda a: a.relu() + 1, {f})",
]
MODULES = [
    "nn.Linear({size}, {k})", "nn.Linear({size}, {size}, bias=False)", "nn.LayerNorm({size})", "nn.ReLU(inplace=True)",
    "nn.GELU()", "nn.SiLU(inplace=True)", "nn.Hardtanh(inplace=True)", "nn.Dropout(0.5).eval()", "nn.Softmax(-1)",
    "nn.Sequential(nn.Linear({size}, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))", "nn.RMSNorm({size})",
    "nn.Sequential(nn.LayerNorm({size}), nn.GELU())", "nn.BatchNorm1d({channels})", "nn.BatchNorm2d({channels})",
    "nn.BatchNorm1d({channels}, momentum=None)", "nn.BatchNorm1d({channels}, affine=False).eval()",
    "nn.BatchNorm1d({channels}, track_running_stats=False)", "nn.GroupNorm(1, {channels})",
    "nn.InstanceNorm1d({channels}, track_running_stats=True)", "nn.InstanceNorm2d({channels})", "nn.Dropout(0.0)",
    "nn.Conv1d({channels}, 2, 2)", "nn.Conv2d({channels}, 2, 2, padding=1)", "nn.Conv2d({channels}, 2, 1, bias=False)",
    "nn.ConvTranspose1d({channels}, 2, 2)", "nn.MaxPool2d(2)", "nn.AdaptiveAvgPool2d(1)", "Counting()", "nn.Identity()",
    "nn.Sequential(Counting(), nn.Tanh())", "nn.LeakyReLU(0.1, inplace=True)", "nn.ELU()", "nn.PReLU()",
    "nn.Flatten(0)",
    "nn.Upsample(scale_factor=2)", "nn.ZeroPad2d(1)", "nn.Unflatten(-1, (2, -1))",
]
REGIONS = ("torch.no_grad()", "torch.no_grad()", "torch.enable_grad()", "torch.set_grad_enabled(False)",
           "torch.set_grad_enabled(self.training)", "torch.inference_mode()")
MODES = [
    "with {mode}:\n    {f}.mul_({c})", "with {mode}:\n    {f}.masked_fill_({f} > 0, {c})",
    "with {mode}:\n    {f}.copy_({y})", "with {mode}:\n    {f}[0].add_({y})", "with {mode}:\n    {f}.view(-1).mul_(2)",
    "with {mode}:\n    {f}.t().copy_({y})", "with {mode}:\n    {f}.detach().mul_({c})",
    "with {mode}:\n    {f}.data.mul_({c})", "with {mode}:\n    {new} = {f} * {y}",
    "with {mode}:\n    {new} = {f}[0]\n    {new}.add_(1)", "with {mode}:\n    {new} = {f}.clone().relu_()",
    "with {mode}:\n    {f}.mul_({c})\n    with {inner}:\n        {new} = {f} * {y}",
    "with {mode}:\n    with {inner}:\n        {f}.add_({y})\n    {new} = {f}.sin()",
    "{new} = {f} * {y}\nwith {mode}:\n    {new}.mul_({c})", "{new} = {f}.detach()\n{new}.mul_({c})",
    "{f}.detach_()", "{new} = {f}.clone().detach_()", "{new} = {f} * 2\n{new}.detach_().add_(1)",
]
FUNCTIONS = [
    "{new} = Rounded.apply({f})", "{new} = Scaled.apply({f}, {c})", "{new} = Reversed.apply({f})",
    "{new}, {new}i = Clipped.apply({f})", "{new} = Rounded.apply({f} * 2) + {y}",
    "with {mode}:\n    {new} = Rounded.apply({f})",
]
TRANSFORMS = [
    "{new} = torch.vmap(scored)({f})", "{new} = torch.vmap(mixed, in_dims=(0, None))({f}, {y})",
    "{new} = torch.vmap(mixed, in_dims={d}, out_dims={e})({f}, {f})", "{new} = torch.vmap(torch.vmap(scored))({f})",
    "{new} = torch.func.grad(energy)({f})", "{new} = torch.vmap(torch.func.grad(energy))({f})",
    "{new} = torch.func.jvp(scored, ({f},), ({y},))[1]", "{new} = torch.func.jacrev(scored)({f})",
    "{new} = torch.func.vjp(scored, {f})[1]({y})[0]",
]
GUARDS = [
    "{new} = {x} * (2 if {x}.numel() > 20 else 3)", "{new} = {x} * (2 if {x}.shape[0] % 2 else 3)",
    "{new} = {x} * (2 if {x}.shape[0] > {y}.shape[-1] else 3)", "{new} = {f} * float({x}.shape[0])",
    "{new} = {x} * (2 if {x}.shape[0] + 1 < 2 * {y}.shape[0] else 3)", "{new} = {f} / {x}.numel() ** 0.5",
    "{new} = {x} * (2 if {x}.numel() == {y}.numel() else 3)", "{new} = {x}[:{y}.shape[0]] + {y}",
    "{new} = {x} * (2 if max({x}.shape[0], 4) < 6 else 3)", "{new} = {x}.split(2)[1] * 2",
]
FAMILIES = {"view": VIEWS, "write": WRITES, "pointwise": POINTWISE, "other": OTHERS, "control": CONTROL,
            "module": MODULES, "mode": MODES, "function": FUNCTIONS, "transform": TRANSFORMS, "guard": GUARDS}
WEIGHTS = {"view": 24, "write": 26, "pointwise": 20, "other": 18, "control": 1, "module": 9,
           "mode": 6, "function": 1, "transform": 1.5, "guard": 12}
"""How often each family is drawn. Control flow is compiled by Dynamo when it is exported, and so is a custom function
when its module is lowered, a second each. Guards are for programs with a dynamic size."""
WRITING = ("write", "mode")
