"""He et al.'s ResNet-20 for CIFAR on torchvision's basic block: the PyTorch counterpart of vision.NewResNet20."""
import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models.resnet import BasicBlock, conv1x1


class PadShortcut(nn.Module):
    """Option A of the paper: every second pixel, zeros in the added channels."""

    def __init__(self, channels, stride):
        super().__init__()
        self.channels, self.stride = channels, stride

    def forward(self, x):
        before = self.channels // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.channels - before))


class ResNet20(nn.Module):
    def __init__(self, num_classes=10, pad_shortcut=False, channels=3):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = self.layer(16, 16, 1, pad_shortcut)
        self.layer2 = self.layer(16, 32, 2, pad_shortcut)
        self.layer3 = self.layer(32, 64, 2, pad_shortcut)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(64, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    @staticmethod
    def layer(before, after, stride, pad_shortcut):
        downsample = None
        if before != after and pad_shortcut:
            downsample = PadShortcut(after - before, stride)
        elif before != after:
            downsample = nn.Sequential(conv1x1(before, after, stride), nn.BatchNorm2d(after))
        first = BasicBlock(before, after, stride, downsample)
        return nn.Sequential(first, BasicBlock(after, after), BasicBlock(after, after))

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(self.avgpool(x), 1))
