"""The recipes of recipe.go in PyTorch."""

import torch
from torch import nn
from torchvision import models, transforms
from torchvision.models.resnet import BasicBlock

MOMENTUM = 0.9
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ResNet20(nn.Module):
    """He et al.'s network for 32x32 images out of torchvision's blocks, with torchvision's names and initial weights."""

    def __init__(self, num_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = self.layer(16, 16, 1)
        self.layer2 = self.layer(16, 32, 2)
        self.layer3 = self.layer(32, 64, 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(64, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @staticmethod
    def layer(inside, outside, stride):
        downsample = None
        if stride != 1:
            downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        return nn.Sequential(
            BasicBlock(inside, outside, stride, downsample), BasicBlock(outside, outside), BasicBlock(outside, outside)
        )

    def forward(self, images):
        out = self.relu(self.bn1(self.conv1(images)))
        out = self.layer3(self.layer2(self.layer1(out)))
        return self.fc(torch.flatten(self.avgpool(out), 1))


class CIFAR:
    model, classes, lr, decay, autocast = ResNet20, 10, 0.2, 5e-4, False
    crop = transforms.RandomCrop(32, padding=4)


class ImageNet:
    model, classes, lr, decay, autocast = models.resnet50, 300, 0.1, 1e-4, True
    crop = transforms.RandomResizedCrop(224)


def normalize(pixels):
    """torchvision's ToTensor and Normalize of uint8 NHWC pixels. Returns float32 NCHW, channels last."""
    mean, std = torch.tensor(MEAN).view(1, 3, 1, 1), torch.tensor(STD).view(1, 3, 1, 1)
    return pixels.permute(0, 3, 1, 2).to(torch.float32).div(255).sub(mean).div(std)


RECIPES = {"cifar": CIFAR, "imagenet": ImageNet}


class Learner:
    """The model of a recipe in training; steps is the length of the schedule."""

    def __init__(self, recipe, device, steps, weights=None):
        self.device = device
        self.autocast = recipe.autocast and device.startswith("cuda")  # few CPUs can compute in bfloat16
        self.model = recipe.model(num_classes=recipe.classes)
        if weights:
            from safetensors.torch import load_file

            # Names with a slash are of the checkpoint, not of the model.
            self.model.load_state_dict({name: t for name, t in load_file(weights).items() if "/" not in name})
        self.model.to(device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=recipe.lr, momentum=MOMENTUM, weight_decay=recipe.decay, nesterov=True, fused=True
        )
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, recipe.lr, steps, cycle_momentum=False)
        self.loss = nn.CrossEntropyLoss()

    def step(self, images, labels):
        """Trains on one batch, float32 NCHW channels last, and returns the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=self.autocast):
            loss = self.loss(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()
