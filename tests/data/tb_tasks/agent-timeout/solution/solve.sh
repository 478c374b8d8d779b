#!/bin/sh
echo first > progress
sleep 600
