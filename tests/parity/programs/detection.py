"""Programs with operators of torchvision: each operator, and its detectors.

torch.export refuses torchvision's detectors, because they ask for the number of boxes. `exportable`
replaces the functions that ask. With it, a program has one image of fixed size, and masks stay as
the model makes them, 28 x 28 in a box each.
"""

import builtins

import torch
import torchvision
import torchvision.models.detection as detection
from torch import nn
from torchvision import ops


def exportable():
    """Replaces four functions of torchvision. The results are those of the first ones."""

    def batched_nms(boxes, scores, classes, threshold):
        return ops.nms(boxes + classes.to(boxes)[:, None] * 4096, scores, threshold)  # no box of a class meets another class

    def decode(self, codes, boxes):
        boxes = torch.cat(boxes)
        return self.decode_single(codes.reshape(boxes.shape[0], -1), boxes).reshape(boxes.shape[0], -1, 4)

    def length(v):
        return v.shape[0] if isinstance(v, torch.Tensor) else builtins.len(v)

    ops.boxes.batched_nms = batched_nms
    detection._utils.BoxCoder.decode = decode
    ops.poolers.len = detection.roi_heads.len = length
    detection.transform.paste_masks_in_image = lambda masks, boxes, shape: masks


class Operators(nn.Module):
    """Calls each operator of torchvision that has a kernel on the CPU."""

    def __init__(self):
        super().__init__()
        self.deform = ops.DeformConv2d(8, 8, 3, padding=1)
        self.offset = nn.Conv2d(8, 27, 3, padding=1)

    def forward(self, features, boxes, scores):
        offset = self.offset(features)
        kept = ops.nms(boxes, scores, 0.5)
        rois = [boxes[:6]]
        return (kept, boxes[kept].sum(0), self.deform(features, offset[:, :18], offset[:, 18:].sigmoid()),
                ops.roi_align(features, rois, 3, 0.5, 2), ops.roi_align(features, rois, 3, 0.5, -1, True), ops.roi_pool(features, rois, 3, 0.5),
                ops.ps_roi_align(features, rois, 2, 0.5), ops.ps_roi_pool(features, rois, 2, 0.5))


def boxes(n):
    corner = torch.rand(n, 2) * 20
    return torch.cat([corner, corner + 2 + torch.rand(n, 2) * 12], 1)


def programs():
    """Yields names, and functions that return a model and the arguments of its calls."""
    yield "torchvision_operators", lambda: (Operators().eval(), [(torch.randn(1, 8, 16, 16), boxes(20), torch.rand(20)) for _ in range(2)])
    for name, options in [("ssdlite320_mobilenet_v3_large", {}), ("retinanet_resnet50_fpn", {"min_size": 160, "max_size": 160, "score_thresh": 0.0}),
                          ("fasterrcnn_resnet50_fpn", {"min_size": 160, "max_size": 160}), ("maskrcnn_resnet50_fpn", {"min_size": 160, "max_size": 160})]:
        def detector(name=name, options=options):
            model = torchvision.models.get_model(name, weights=None, weights_backbone=None, **options).eval()
            return model, [([torch.rand(3, 160, 160)],) for _ in range(2)]
        yield name, detector
